"""Starts the inference engine once its caches are decided on, and stays beside it until it has ended.

Nothing of the rest of the project and nothing outside the standard library (Python 3.9+) is imported, and
nobody imports this package: `handshake/launcher_file.py` packs it into the one file `launcher.py` of the
control directory, which runs inside the engine's container.

Map: `start.py` the order of a start; `facts.py` what image and machine are, `privacy.py` what is not told by value,
`spelling.py` JSON in one spelling, `script.py` the engine's command in a shell's script, `change.py` what a
fallback makes of it; `links.py`, `locks.py` and
`unmanaged.py` links from HOME, locks that nobody holds, and caches that nobody knows; `attempts.py` the files of a start,
`messages.py` what they ask for; `swap.py` the live caches, `environment.py` what the engine is told of them; `preflight.py` and
`mounts.py` where it can write, and over a network; `process.py` the engine, `output.py` what it prints, `ending.py` how it is
brought to its end, `memory.py` whom the kernel ended, `log.py` what people are told.
"""
