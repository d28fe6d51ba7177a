"""What the numbers of a run mean: one file for each question, without torch, numpy or a terminal.

Start at `run_summary.summarize` for one run and at `comparison` for several.
"""
