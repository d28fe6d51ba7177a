"""From bytes to batches: the catalogue, where samples lie, how a batch is made, the loader.

Start at `catalogue.find` and `loader.make_loader`; `enduring` outlives the workers of a loader.
Nothing here knows that anybody is measuring.
"""
