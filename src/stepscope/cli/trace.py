"""`stepscope trace`: profile a user script, unchanged."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from stepscope.cli.end_of_run import close
from stepscope.cli.streams import AsJson
from stepscope.errors import RequestError
from stepscope.supervisor.hang_watch import parse_hang_after
from stepscope.supervisor.script_child import TraceRequest
from stepscope.supervisor.script_child import trace as trace_script


def trace(
    *command: str,
    module: Annotated[str | None, Parameter(name=["-m", "--module"])] = None,
    out: str = "runs",
    name: str | None = None,
    max_steps: int | None = None,
    layers: int = 0,
    energy: Literal["auto", "off"] = "auto",
    hang_after: str = "60s",
    on_hang: Literal["warn", "stop"] = "warn",
    json: AsJson = False,
) -> int:
    """Profile your training script, unchanged.

    All arguments after SCRIPT, or after -m MODULE, are passed to the script. With --json, its
    output goes to standard error.

    Parameters
    ----------
    command
        The script and its arguments.
    module
        Run a module instead of a script, as python -m does.
    out
        Where to put the run folder.
    name
        Name of the run. [default: the script's name]
    max_steps
        End the script after this many training steps.
    layers
        Time every layer for this many steps, and list the slowest.
    energy
        auto: read every energy sensor that works; off: read none.
    hang_after
        Print all Python stacks if no step ends for this long, such as 5m; 0: never.
    on_hang
        After that: warn and continue, or stop the script.
    """
    if module is None and not command:
        raise RequestError("no script given: stepscope trace [options] SCRIPT [ARGS]")
    if max_steps is not None and max_steps < 1:
        raise RequestError(f"max_steps: wanted 1 or more, found {max_steps}.")
    if layers < 0:
        raise RequestError(f"layers: wanted 0 or more, found {layers}.")
    script, arguments = (None, command) if module is not None else (command[0], command[1:])
    request = TraceRequest(
        script,
        module,
        tuple(arguments),
        out,
        name,
        max_steps,
        layers,
        energy=energy,
        hang_after_s=parse_hang_after(hang_after),
        on_hang=on_hang,
    )
    path, outcome = trace_script(request, output_to_stderr=json)
    # Standard output belongs to the script: the table goes to standard error.
    return close(path, outcome, as_json=json, console=Console(file=sys.stderr))
