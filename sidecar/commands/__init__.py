"""What each subcommand does, a file each; every module named in `cli.COMMANDS` has a click command called
`command`.

Commands read the environment and print; what they know comes from the rooms below.

Map: `settings_flags.py` a flag for every setting, `asked.py` calls to a running daemon from synchronous code,
`tables.py` the only place that imports rich for tables, `checks.py` what `check` tries, `reference.py` the
tables of `docs`, the rest one subcommand each.
"""
