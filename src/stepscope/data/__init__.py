"""From bytes to batches: the catalogue, where samples lie, how a batch is made, the loader.

Start at `catalogue.find` and `loader.make_loader`. Nothing here knows that anybody is measuring.
"""
