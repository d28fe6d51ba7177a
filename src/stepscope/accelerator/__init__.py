"""Energy, cycles and points of a network on a weight-stationary accelerator.

An estimate from layer shapes and an accelerator design; nothing is run. Start at
`estimate`, which maps every layer of a network (`mapper`), and at `rubric` for the points.
What a network costs on a real machine is in `models.model_summary` and `analyze.roofline`.
"""
