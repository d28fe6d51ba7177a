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
        Where the runs are. [default: runs]
    port
        The port to listen on; 0 takes any free one.
    host
        The address to listen on. On any but loopback, the printed token is needed.
    """
    root = _USUAL_FOLDER if folder is None else folder
    if folder is not None and not folder.is_dir():
        raise RequestError(
            f"{folder} is no folder. Give the one that holds runs: the --out of run."
        )
    if (root / schema.RUN).exists() or (root / schema.SWEEP).exists():
        raise RequestError(
            f"{root} is a run or a sweep itself. Give the folder that holds it: "
            f"stepscope serve {root.resolve().parent}"
        )

    def print_address(url: str) -> None:
        answer: ServeAnswer = {"url": url, "folder": str(root)}
        print(dumps(answer) if json else url, flush=True)
        print(f"stepscope: serving {root}; Ctrl-C ends it", file=sys.stderr, flush=True)

    from stepscope.report.live import live_server

    live_server.serve(root, host, port, print_address)
