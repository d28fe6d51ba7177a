"""Detect steps, epochs and evaluations in the events that the hooks record.

Nothing here touches torch's objects. Start at `steps`, which interprets the events. `evaluations`
holds loops whose purpose is not yet known, `epochs` begins and ends steps and epochs, `fast_path`
takes steps that repeat, `row_builder` makes the rows.
"""
