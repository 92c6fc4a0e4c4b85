"""What the GPUs beside us are: NVML readings and the table of SM versions; the only room that loads NVML.

Nothing is decided here: a reading is a fact, or a GpuUnavailable that says why there is none.
"""
