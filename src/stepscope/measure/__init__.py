"""When and how we look: the clock, the phases of a step, loading, telemetry, our own cost.

Nothing here knows what the numbers mean, and nothing here changes what is measured. Start at
`steps.StepMeter` for a loop and at `telemetry.Sampler` for a process seen from outside.
"""
