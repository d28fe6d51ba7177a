"""`stepscope serve`: the live page."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path

from stepscope.cli.streams import AsJson
from stepscope.errors import RequestError
from stepscope.records import schema
from stepscope.records.types import ServeAnswer

_USUAL_FOLDER = Path("runs")
_USUAL_PORT = 6070


def serve(
    folder: Path | None = None,
    /,
    *,
    port: int = _USUAL_PORT,
    host: str = "127.0.0.1",
    json: AsJson = False,
) -> None:
    """Show the runs below a folder in a browser, live, until Ctrl-C.

    Parameters
    ----------
    folder
        The folder of the runs. [default: runs]
    port
        The port to listen on; 0 chooses a free one.
    host
        The address to listen on. Other than loopback, visitors need the printed token.
    """
    root = _USUAL_FOLDER if folder is None else folder
    if folder is not None and not folder.is_dir():
        raise RequestError(
            f"{folder} is not a folder. Give the folder of your runs: stepscope serve runs"
        )
    if (root / schema.RUN).exists() or (root / schema.SWEEP).exists():
        raise RequestError(
            f"{root} is a run or a sweep. Give the folder that contains it: "
            f"stepscope serve {root.resolve().parent}"
        )

    def print_address(url: str) -> None:
        answer: ServeAnswer = {"url": url, "folder": str(root)}
        print(dumps(answer) if json else url, flush=True)
        print(f"stepscope: serving {root}; press Ctrl-C to stop", file=sys.stderr, flush=True)

    from stepscope.report.live import live_server

    live_server.serve(root, host, port, print_address)
