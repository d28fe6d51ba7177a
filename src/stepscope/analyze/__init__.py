"""What the numbers of a run mean: one file for each question.

Everything here reads records and returns plain values; no torch, no numpy, no terminal. Start at
`run_summary.summarize` for one run and at `comparison` for several. `phase_shares` says where the
time of a step goes, `verdict` says it in a sentence, and `findings` draws the other conclusions.
Rendering is in `report`.
"""
