"""Timing of stepscope's own training loop, step by step.

Start at `step_meter.StepMeter`, which turns laps of the loop into rows of `steps.csv`. The package
neither interprets the numbers nor changes what it measures. `trace` times a user's script;
`telemetry` samples a process from outside.
"""
