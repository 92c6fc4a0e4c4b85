"""The demo: a real vLLM on this machine's CPU, started twice, to show what a warm start is worth.

Every number is measured while it runs; none is written down anywhere in it.

Map: `run.py` the order of things, `starts.py` one start and its measurement, `workplace.py` folders, ports
and environment, `processes.py` starting and ending by pid, `measure.py` CPU seconds, kernels and live
requests, `figures.py` what was found, `view.py` and `live_view.py` what is seen meanwhile, `summary.py` the
closing table; `engine_setup.py`, `engine_requirements.py`, `pip_progress.py` and `tiny_model.py` prepare the
engine.
"""
