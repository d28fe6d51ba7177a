"""One file for each data set; `data.dataset_registry` lists them.

A data set module has the functions of `data.dataset.DataModule`: check, load, open its files, get,
verify and describe.
"""
