"""Bytes to batches: data sets, their samples, the order of samples and how images are decoded.

Start at `dataset_registry.find`, which returns the `DataSet` of a name; its samples become batches
in `image_batches`. `loaders` has the DataLoader and its workers, `object_store` S3 and
compatible stores, `datasets` one file for each data set.
"""
