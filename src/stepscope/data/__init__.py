"""Bytes to batches: data sets, the order of their samples, and loaders.

Start at `dataset_registry.find`, which returns the `DataSet` of a name. `record_dataset` makes
batches of small images, `image_batches` of image files, `datasets.wordpiece` of texts.
"""
