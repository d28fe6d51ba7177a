"""`stepscope export`: a run in a format of other tools."""

from __future__ import annotations

import contextlib
import json as json_module
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from stepscope.errors import DISK_FULL_ERRNOS, RequestError, disk_full, nearest
from stepscope.records import schema
from stepscope.records.reader import Run, load_run
from stepscope.report import chrome


@dataclass(frozen=True)
class Format:
    """A format: the file's usual name, its text in pieces with their events, what opens it."""

    file: str
    encode: Callable[[Run], Iterator[tuple[str, int]]]
    opened_by: str


FORMATS = {
    "chrome": Format(chrome.FILE, chrome.encode, "https://ui.perfetto.dev or chrome://tracing"),
}

_STANDARD_OUTPUT = "-"
_RECORD = {*schema.COLUMNS, schema.RUN, schema.EVENTS, schema.CHECKPOINT}


def export(
    run: Path,
    /,
    *,
    to: str = "chrome",
    output: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write a run in a format of other tools.

    Parameters
    ----------
    run
        The run folder; the run may still be going on.
    to
        The format: chrome, a trace for Perfetto and chrome://tracing.
    output
        The file to write, or - for standard output; without it, trace.json in the run folder.
    json
        Print path and number of events, and nothing else, on standard output.
    """
    wanted = FORMATS.get(to)
    if wanted is None:
        raise RequestError(f"unknown format {to!r}.{nearest(to, FORMATS)}")
    if output is not None and output.startswith("--"):
        raise RequestError(f"--output wants a file or -, found {output!r} (a file: ./{output}).")
    if json and output == _STANDARD_OUTPUT:
        raise RequestError(
            "--json and --output - both want standard output. Leave one of them out, or give "
            "--output a file."
        )
    recorded = load_run(run)
    pieces = _read(wanted.encode(recorded), recorded)
    if output == _STANDARD_OUTPUT:
        for text, _ in pieces:
            sys.stdout.write(text)
        return 0
    target = recorded.path / wanted.file if output is None else Path(output)
    _refuse_to_replace_the_record(target, recorded)
    events = _write(target, pieces)
    if recorded.status == schema.RUNNING:
        print(
            "stepscope: the run has not been closed: this is what was on disk by now",
            file=sys.stderr,
        )
    if json:
        print(json_module.dumps({"path": str(target), "events": events}))
    else:
        print(f"{events:,} events: {target}\nopen it in {wanted.opened_by}")
    return 0


def _read(pieces: Iterator[tuple[str, int]], run: Run) -> Iterator[tuple[str, int]]:
    """Keep failures to read the run apart from failures to write the file."""
    try:
        yield from pieces
    except OSError as error:
        raise RequestError(f"cannot read the run in {run.path}: {error}") from error


def _refuse_to_replace_the_record(target: Path, run: Run) -> None:
    if target.name in _RECORD and run.path in target.resolve().parents:
        raise RequestError(
            f"{target} is a part of the run itself and is not replaced. "
            "Choose another file with --output FILE."
        )


def _write(target: Path, pieces: Iterator[tuple[str, int]]) -> int:
    """Write the file in one move, so that it is whole or not there; return its events.

    What is no file (a pipe, /dev/null) is written to as it is.
    """
    target = target.resolve()
    in_one_move = target.is_file() or not target.exists()
    written = target.with_name(f".{uuid.uuid4().hex[:8]}.tmp") if in_one_move else target
    events = 0
    try:
        with written.open("w", encoding="utf-8") as file:
            for text, count in pieces:
                file.write(text)
                events += count
        if in_one_move:
            os.replace(written, target)  # noqa: PTH105 - its error names both files
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(target)) from error
        raise RequestError(
            f"cannot write {target}: {error.strerror or error}. "
            "Choose a file that can be written with --output FILE."
        ) from error
    finally:
        if in_one_move:
            with contextlib.suppress(OSError):  # mostly: it is not there
                written.unlink()
    return events
