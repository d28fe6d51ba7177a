"""Sampling of a run, built-in or a user's script, from outside its process.

Start at `telemetry_sampler.Sampler`: memory, CPU, reads, pressure, clocks, once or twice a second.
`energy_sampler` reads the sensors of `hardware.energy`, `throttle_watch` detects throttling.
"""
