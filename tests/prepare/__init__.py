"""`python -m tests`: prepare what the tests need, run every check, and say what was skipped and why.

Map: `debian.py` Debian packages, `engine.py` the CPU engine, `stages.py` what is run in which order,
`outcome.py` how a stage ended, `running.py` child processes, `summary.py` the table at the end.
"""
