"""One file for each data set; `data.dataset_registry` lists them.

Each module has a function `describe`, which returns its `data.dataset.DataSet`.
"""
