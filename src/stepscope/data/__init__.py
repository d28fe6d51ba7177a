"""Bytes to batches: data sets, their samples, the order of samples and how images are decoded.

Start at `dataset_registry.find`, which returns the `DataSet` of a name; its samples become batches
in `image_batches`. The DataLoader and its workers are in `loaders`, S3 and its like in
`object_store`, one file for each data set in `datasets`.
"""
