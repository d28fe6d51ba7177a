"""Detect steps, epochs and evaluations in the events that the hooks record.

Nothing here touches torch's objects. Start at `steps`, which detects training steps. `epochs`
groups them, `fast_path` handles loops whose steps repeat, `row_builder` makes the rows.
"""
