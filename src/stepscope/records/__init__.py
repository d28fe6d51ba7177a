"""The run folder: its files, columns and types, its writers and its reader.

Whatever reads a run folder needs no torch, no GPU and no network. Start at `run_folder.create` to
make one and at `run_reader.load_run` to read one; `schema` names every file and column.
"""
