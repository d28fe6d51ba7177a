"""What was seen: the run folder, its schema, its writers and its reader.

The run folder is the seam of the product: whatever reads it needs no torch, no GPU and no network.
Start at `folder.create` to make one, at `reader.load_run` to read one.
"""
