"""Lay caches down before the engine starts, and publish what it compiled: the room's map.

families      the table of cache families: directory, variables, scope, what to leave out, what is a kernel
fingerprint   the facts that must agree, declared once; exact and toolchain keys; which facts differ
own_names     what a pod is called, taken out of values that enter a key
switched_off  caches that the engine's own arguments and variables turn off or put elsewhere
scan          what lies in the live cache; what is new or changed since then
live_cache    the live cache as a place: lock, filesystem type, the marker that says whose files these are
manifest      one generation: every file with size, digest, times, pack; nothing is believed unchecked
packs         writing and verified reading of `.tar.zst` archives
validity      is a kernel entry complete: Triton group files, DeepGEMM cubins, ninja state
store         the directory that outlives the pod: names, exclusive creation, quarantine, boot records
restore       choose generations, stage them verified, say what was left out and why
commit        swap staged families in (beside mode), sweep what earlier attempts left
publish       snapshot what is complete and new, pack it, create the next generation
messages      what crosses the process boundary: requests, progress, results
worker        the child process that does a restore or a publish; client: the daemon's end of it

Nothing is imported here, so that importing one module of the room costs only that module.
"""
