"""Forecast the memory of a run before it starts.

Start at `fit_check.check_fit`: a few small steps in the training process (`forecast`) give the
`memory_bill`, item by item, and the settings that lower it. `telemetry` measures the
memory of a run, and `analyze.memory_use` explains it.
"""
