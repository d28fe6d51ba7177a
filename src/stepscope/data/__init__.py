"""Bytes to batches: data sets, their samples, the order of samples and how images are decoded.

Start at `dataset_registry.find`, which returns the `DataSet` of a name. `record_dataset` makes
batches of small images, `image_batches` of image files, `datasets.wordpiece` of texts. `loaders`
has the DataLoader and its workers, `object_store` S3 and compatible stores, `datasets` one file
for each data set.
"""
