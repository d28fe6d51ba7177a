"""Tables and charts as text, one file for each command's output.

Start at `run_tables` for a single run; `table_style` has what all tables share.
"""
