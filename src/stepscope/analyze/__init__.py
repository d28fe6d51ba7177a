"""What the numbers of a run mean: one file for each question.

Everything here reads records and returns plain values; no torch, no numpy, no terminal. Start at
`run_summary.summarize` for one run and at `comparison` for several; conclusions in words are in
`findings`. How an answer looks is in `report`.
"""
