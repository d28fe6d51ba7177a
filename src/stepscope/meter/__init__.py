"""Times our own training loop, step by step.

Start at `step_meter.StepMeter`, which turns laps of the loop into rows of `steps.csv`. Nothing
here knows what the numbers mean, and nothing here changes what is measured. A user's script is
timed by `trace`; what is sampled from outside a process is in `telemetry`.
"""
