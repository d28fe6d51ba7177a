"""The data sets, by name.

A data set is a module in `datasets` with a function `describe`, and a line in `_MODULES`. It is
imported on first use.
"""

from __future__ import annotations

import importlib

from stepscope.data.dataset import DataSet, DataSource
from stepscope.errors import RequestError, nearest

_MODULES = {
    "shapes": "stepscope.data.datasets.shapes",
    "cifar10": "stepscope.data.datasets.cifar",
    "folder": "stepscope.data.datasets.image_folder",
    "text": "stepscope.data.datasets.text",
}

NAMES = tuple(_MODULES)


def find(name: str, reading: DataSource | None = None) -> DataSet:
    """Return the data set called `name` at a data source."""
    if name not in _MODULES:
        raise RequestError(f"no data set {name!r}.{nearest(name, _MODULES)}")
    reading = reading or DataSource()
    described: DataSet = importlib.import_module(_MODULES[name]).describe(reading)
    if reading.shape not in (None, described.shape):
        own, wanted = (",".join(map(str, shape)) for shape in (described.shape, reading.shape))
        raise RequestError(
            f"input: the samples of {name} are {own}, found {wanted}. Leave --input out: only "
            "images of --data folder are resized."
        )
    return described
