"""Finds networks within a budget of energy and cycles.

Start at `search_run`; `search_space` has the designs, `proposals` chooses the next one.
"""
