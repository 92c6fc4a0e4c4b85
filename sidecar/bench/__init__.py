"""Measuring what requests to a running engine wait for: load, percentiles, comparison of two runs.

Draws nothing on a terminal and decides nothing about warm-up or readiness.

Map: `shapes.py` (how long requests are), `requests.py` (requests of those lengths, and what the engine takes),
`load.py` (sends them with exact concurrency), `samples.py` (what came back), `lag.py` (was the client itself slow),
`percentiles.py` (definitions), `report.py` (one run as a file), `noise.py` (how sure a difference is),
`comparison.py` (two runs), `plot.py` (rows of bars), `durations.py` (how times are written).
"""
