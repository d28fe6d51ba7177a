"""`stepscope resume`: continue a stopped run."""

from __future__ import annotations

from stepscope.cli.completion import RunPath
from stepscope.cli.end_of_run import close, one_display
from stepscope.cli.streams import AsJson
from stepscope.supervisor import start_run


def resume(path: RunPath, /, *, processes: int | None = None, json: AsJson = False) -> int:
    """Continue a stopped run, in its folder, from its checkpoint.

    Parameters
    ----------
    path
        The run folder.
    processes
        Continue in this many processes [default: as before].
    """
    with one_display() as display:
        found, outcome = start_run.resume(path, display, processes=processes)
    return close(found, outcome, as_json=json)
