"""`stepscope export`: a run in a format of other tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from stepscope.cli.completion import RunPath
from stepscope.cli.streams import AsJson, print_answer
from stepscope.errors import RequestError, nearest
from stepscope.files import cannot_write, replace_file
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.types import ExportAnswer
from stepscope.report.export import chrome_trace, parquet, tensorboard_events, tsv
from stepscope.report.terminal.table_style import say

# Yields the content of a file in pieces, each with its number of events or rows.
Encode = Callable[[Run], Iterator[tuple[str, int]]] | Callable[[Run], Iterator[tuple[bytes, int]]]


@dataclass(frozen=True)
class Format:
    """A format: its files, what is counted, and how to open it; without a folder, one text file."""

    files: Mapping[str, Encode]
    counted: Literal["events", "rows"]
    how_to_open: str
    folder: str | None = None


FORMATS = {
    "chrome": Format(
        {chrome_trace.FILE: chrome_trace.encode},
        "events",
        "open it in https://ui.perfetto.dev or chrome://tracing",
    ),
    "parquet": Format(
        {name: partial(parquet.encode, source=source) for name, source in parquet.FILES.items()},
        "rows",
        "read them with pandas, Polars, DuckDB, Spark or R",
        folder=parquet.FOLDER,
    ),
    "tensorboard": Format(
        {tensorboard_events.FILE: tensorboard_events.encode},
        "events",
        "open it with: tensorboard --logdir {path}",
        folder=tensorboard_events.FOLDER,
    ),
    "tsv": Format({tsv.FILE: tsv.encode}, "rows", "accuracy in percent, time in hours"),
}

_STANDARD_OUTPUT = "-"
_RECORD = {*schema.COLUMNS, schema.RUN, schema.EVENTS, schema.CHECKPOINT}


def export(
    run: RunPath,
    /,
    *,
    to: str = "chrome",
    output: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json: AsJson = False,
) -> int:
    """Write a run in a format of other tools.

    Parameters
    ----------
    run
        The run folder; the run may still be active.
    to
        The format: chrome, a trace for Perfetto and chrome://tracing; parquet, the tables of steps,
        epochs and telemetry; tensorboard, scalars; tsv, epoch, hours, top-1 and top-5 in percent.
    output
        Where to write: for chrome and tsv a file, or - for standard output; for parquet and
        tensorboard a folder. Without it, into the run folder.
    """
    wanted = FORMATS.get(to)
    if wanted is None:
        raise RequestError(f"unknown format {to!r}.{nearest(to, FORMATS)}")
    if output is not None and (not output or output.startswith("--")):
        named_so = f" (for a file of that name: ./{output})" if output else ""
        raise RequestError(f"--output: wanted a file, a folder or -, found {output!r}{named_so}.")
    if output == _STANDARD_OUTPUT and wanted.folder is not None:
        raise RequestError(
            f"{to} is written into a folder, not to standard output. Give --output a folder or "
            "omit it."
        )
    if output == _STANDARD_OUTPUT and json:
        raise RequestError(
            "--json and --output - both use standard output. Omit one, or give --output a file."
        )
    recorded = load_run(run)
    pieces = {name: _read(encode, recorded) for name, encode in wanted.files.items()}
    if output == _STANDARD_OUTPUT:
        for content, _ in chain(*pieces.values()):
            sys.stdout.write(content.decode())
        return 0
    target = (
        recorded.path / (wanted.folder or next(iter(pieces))) if output is None else Path(output)
    )
    if wanted.folder is not None:
        count = sum(_write(target / name, each, into=target) for name, each in pieces.items())
    elif target.name in _RECORD and recorded.path in target.resolve().parents:
        raise RequestError(
            f"{target} is part of the run and is not replaced. "
            "Choose another file with --output FILE."
        )
    else:
        count = sum(_write(target, each) for each in pieces.values())
    if recorded.status == schema.RUNNING:
        print(
            "stepscope: the run has not been closed; exported what is on disk so far",
            file=sys.stderr,
        )
    answer: ExportAnswer = {"path": str(target)}
    answer[wanted.counted] = count
    done = f"Wrote {count:,} {wanted.counted} to {target}"
    following = f"Next: {wanted.how_to_open.format(path=target)}"
    print_answer(answer, lambda console, _: say(console, done, following), as_json=json)
    return 0


def _read(encode: Encode, run: Run) -> Iterator[tuple[bytes, int]]:
    """Separate failures to read the run from failures to write the file."""
    try:
        for piece, count in encode(run):
            yield piece.encode() if isinstance(piece, str) else piece, count
    except OSError as error:
        raise RequestError(f"cannot read the run in {run.path}: {error}") from error


def _write(target: Path, pieces: Iterator[tuple[bytes, int]], into: Path | None = None) -> int:
    """Write a file atomically, or a pipe directly; return the count of events or rows."""
    first = next(pieces)  # before a folder is made: there may be nothing to write
    target = target.resolve()
    total = 0

    def content() -> Iterator[bytes]:
        nonlocal total
        for piece, count in chain([first], pieces):
            total += count
            yield piece

    try:
        if into is not None:
            into.mkdir(exist_ok=True)
        if target.is_file() or not target.exists():
            replace_file(target, content(), make_folder=False)
        else:
            with target.open("wb") as file:
                file.writelines(content())
    except OSError as error:
        what, flag = ("file", "FILE") if into is None else ("folder", "DIR")
        advice = f"Choose a {what} that can be written with --output {flag}."
        raise cannot_write(error, str(target), advice) from error
    return total
