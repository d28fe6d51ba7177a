"""Experiments by name: a lab is a TOML sheet in `sheets` and, where need be, code in `procedures`.

Start at `lab_runner`; `lab_plan` reads a sheet and combines it with the user's flags,
`lab_trials` runs its settings in rounds, `lab_answers` draws the conclusion.
"""
