"""Events in; steps, epochs and evaluations out.

Nothing here touches torch's objects. Start at `steps`, which recognises training steps; `epochs`
groups them, `fast_path` handles loops whose steps repeat, `row_builder` makes the rows.
"""
