"""Tracing inside a user's script: hooks on torch, and the events that they record.

Start at `bootstrap`, which attaches to the script's process, and at `tracer.Tracer`, which owns the
hooks (`torch_hooks`, which installs the others) and the `event_buffer`. `detect` turns events into
steps, epochs and evaluations.
"""
