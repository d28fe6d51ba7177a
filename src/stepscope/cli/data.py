"""`stepscope data`: get and verify data sets."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from stepscope.data import catalogue
from stepscope.errors import DataError

app = App(name="data", help="Get and verify data sets.")

DataDir = Annotated[Path, Parameter(help="folder where data sets lie")]
AsJson = Annotated[bool, Parameter(negative=(), help="print one JSON object on standard output")]


@app.command
def get(name: str, /, *, data_dir: DataDir = Path("data"), json: AsJson = False) -> int:
    """Fetch a data set into the data folder, unless it is there and valid.

    Parameters
    ----------
    name
        A data set, such as cifar10.
    """
    dataset = catalogue.find(name)
    dataset.get(data_dir, lambda line: print(line, file=sys.stderr))
    return verify(name, data_dir=data_dir, json=json)


@app.command
def verify(name: str, /, *, data_dir: DataDir = Path("data"), json: AsJson = False) -> int:
    """Check every byte of a data set against its published checksums.

    Parameters
    ----------
    name
        A data set, such as cifar10.
    """
    dataset = catalogue.find(name)
    checked = dataset.verify(data_dir)
    if json:
        files = [asdict(found) for found in checked]
        print(json_module.dumps({"data": name, "data_dir": str(data_dir), "files": files}))
    else:
        for found in checked:
            print(f"{found.status:10} {found.file}  {found.detail}")
    wrong = [found for found in checked if not found.ok]
    if not wrong:
        return 0
    print(
        f"stepscope: {len(wrong)} of {len(checked)} files of {name} in {data_dir} are not as "
        f"published. Fetch them with: stepscope data get {name} --data-dir {data_dir}",
        file=sys.stderr,
    )
    return DataError.exit_code
