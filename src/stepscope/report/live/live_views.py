"""The views of the live page: the list of records, one record, or several runs side by side."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stepscope.errors import StepscopeError
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.sweep_folder import Sweep
from stepscope.records.table import Table, read_table
from stepscope.records.types import RunRecord, SweepRecord
from stepscope.report.charts.vega_lite import Drawn
from stepscope.report.html.chart_embed import for_page
from stepscope.report.html.html_page import body, document_of, prose, recorded_in
from stepscope.report.live.run_index import Library, RunEntry
from stepscope.units import format_bytes, format_duration, format_share

Recorded = Run | Sweep | list[Run]


@dataclass(frozen=True)
class View:
    """The body of a page: HTML in which all recorded text is escaped, and its charts."""

    title: str
    body: str
    charts: list[Drawn]
    active: bool = False

    def version(self) -> str:
        """A hash of the content: equal versions look the same."""
        seen = json.dumps([self.title, self.body, self.charts, self.active])
        return hashlib.sha256(seen.encode()).hexdigest()[:16]


def view_of(
    library: Library, names: Sequence[str], read: Callable[[Path], Table] = read_table
) -> View:
    """Return the view of a record or, for several names, of the runs side by side."""
    folders = [library.find(name) for name in names]
    try:
        several = [load_run(folder, read) for folder in folders] if len(folders) > 1 else None
        recorded: Recorded = several or recorded_in(folders[0], read)
        document = document_of(recorded)
        charts = [for_page(chart) for chart in document.charts()]
        html = "".join((*body(document), *_trials(library, recorded)))
    except StepscopeError as error:
        return message("Cannot show this run", ", ".join(names), str(error))
    except Exception as error:
        # A record may hold anything: its page shows the error, and the others are still served.
        reason = f"Unexpected content in the record: {type(error).__name__}: {error}."
        return message("Cannot show this run", ", ".join(names), reason)
    each = recorded if isinstance(recorded, list) else [recorded]
    active = any(one.info.get("status") == schema.RUNNING for one in each)
    return View(document.title, html, charts, active)


def message(title: str, *sentences: str, active: bool = False) -> View:
    """Return a view with a message in place of a record."""
    paragraphs = "".join(f"<p>{prose(sentence)}</p>\n" for sentence in sentences)
    html = f'<header>\n<h1>{escape(title)}</h1>\n</header>\n<main id="main">\n{paragraphs}</main>\n'
    return View(title, html, [], active)


def address(name: str) -> str:
    """Return the URL path of a record, whatever characters its name has."""
    return f"/runs/{quote(os.fsencode(name))}"


def _trials(library: Library, recorded: Recorded) -> Iterator[str]:
    """Return links from a sweep to its runs."""
    if not isinstance(recorded, Sweep):
        return
    folders = [recorded.folder_of(trial) for trial in recorded.trials]
    yield '<nav class="trials" aria-label="Runs of the sweep">\n<h2>Runs</h2>\n<ul>\n'
    for folder in folders:
        if (folder / schema.RUN).exists():
            name = folder.relative_to(library.root).as_posix()
            yield f'<li><a href="{escape(address(name))}">{escape(folder.name)}</a></li>\n'
    yield "</ul>\n</nav>\n"


_MOST_SHOWN = 1_000
_SILENT_S = 60.0  # a run samples its memory, and so writes, at least this often
_NOT_DONE = (schema.PENDING, schema.RUNNING, schema.INTERRUPTED)
_COLUMNS = ('<span class="unseen">compare</span>', "name", "state", "kind", "training", "started")
_FIGURES: dict[str, Callable[[Any], str]] = {
    "samples/s": lambda summary: f"{summary['samples_per_s']:,.0f}",
    "waiting for data": lambda summary: format_share(summary["phases"]["data"]["share"]),
    "test accuracy": lambda summary: format_share(summary["test_accuracy"]),
    "peak memory": lambda summary: format_bytes(summary["peak_memory_bytes"]),
}


def view_of_list(root: Path, entries: Sequence[RunEntry], now_unix_s: float) -> View:
    """Return the list of all records, the newest first."""
    html = "".join(_body(root, entries, now_unix_s))
    active = any(
        not isinstance(entry.info, str) and entry.info.get("status") == schema.RUNNING
        for entry in entries
    )
    return View("Runs", html, [], active)


def _body(root: Path, entries: Sequence[RunEntry], now_unix_s: float) -> Iterator[str]:
    yield '<a class="skip" href="#main">Skip to the runs</a>\n<header>\n<h1>Runs</h1>\n'
    yield f'<p>{escape(str(root))}</p>\n</header>\n<main id="main" tabindex="-1">\n'
    if not entries:
        out = "" if root.name == "runs" else f" --out {root}"
        yield "<p>There are no runs here yet. Start one and it appears here:</p>\n"
        for command in (f"stepscope run{out}", f"stepscope trace{out} your_script.py"):
            yield f"<p><code>{escape(command)}</code></p>\n"
        yield "</main>\n"
        return
    head = "".join(f'<th scope="col">{name}</th>' for name in (*_COLUMNS, *_FIGURES))
    yield '<form action="/compare" method="get">\n'
    yield '<p class="choice"><button type="submit">Compare</button> '
    yield "<span>Choose two or more runs.</span></p>\n"
    yield '<div class="scroll" role="region" tabindex="0" aria-label="Runs">\n'
    yield '<table class="runs">\n'
    yield f"<thead><tr>{head}</tr></thead>\n<tbody>\n"
    for entry in entries[:_MOST_SHOWN]:
        yield _row(entry, now_unix_s)
    yield "</tbody>\n</table>\n</div>\n</form>\n"
    if len(entries) > _MOST_SHOWN:
        yield f'<p class="note">The newest {_MOST_SHOWN:,} of {len(entries):,} are shown.</p>\n'
    yield "</main>\n"


def _row(entry: RunEntry, now_unix_s: float) -> str:
    name, info = escape(entry.name), entry.info
    to, shown = escape(address(entry.name)), entry.name.rpartition("/")[2]
    choice, cells = "", ["?", *[""] * (2 + len(_FIGURES))]
    if isinstance(info, str):
        state = f'<td class="state failed">unreadable<span>{escape(info)}</span></td>'
    else:
        shown = str(info.get("name") or shown)
        state = _state(info, now_unix_s - entry.changed_unix_s)
        kind = str(info.get("kind", "?"))
        cells = [escape(kind), escape(_what(info)), _started(info), *_figures(info)]
        if kind in ("run", "trace"):
            compare = f'aria-label="Compare {name}"'
            choice = f'<input type="checkbox" name="run" value="{name}" {compare}>'
    named = f'<a href="{to}">{escape(shown)}</a><span class="folder">{name}</span>'
    return (
        f'<tr id="{to}"><td>{choice}</td><th scope="row">{named}</th>{state}'
        f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
    )


def _state(info: RunRecord | SweepRecord, silent_s: float) -> str:
    status, why = str(info.get("status", "?")), str(info.get("reason") or "")
    if status == schema.RUNNING and silent_s > _SILENT_S:
        # In minutes, so that the list does not change with every request.
        why = f"nothing written for {format_duration(silent_s // 60 * 60)}, probably killed"
    more = f"<span>{escape(why)}</span>" if why and why != status else ""
    kind = status if status in (schema.RUNNING, schema.COMPLETED) else "failed"
    return f'<td class="state {kind}">{escape(status.replace("_", " "))}{more}</td>'


def _what(info: RunRecord | SweepRecord) -> str:
    spec, trials = info.get("spec"), info.get("trials")
    if isinstance(trials, list):
        states = [each.get("status") for each in trials if isinstance(each, dict)]
        done = sum(state not in _NOT_DONE for state in states)
        return f"{done:,} of {len(trials):,} trials"
    if not isinstance(spec, dict):
        return ""
    script = spec.get("module") or spec.get("script") or info.get("script")
    if script or not spec.get("model"):
        return str(script or "")
    return f"{spec['model']} on {spec.get('data', '?')}"


def _started(info: RunRecord | SweepRecord) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(info.get("started_unix_s") or None))
    except (TypeError, ValueError, OverflowError, OSError):  # not a number
        return ""


def _figures(info: RunRecord | SweepRecord) -> Iterator[str]:
    for form in _FIGURES.values():
        try:
            yield escape(form(info.get("summary") or {}))
        except (KeyError, TypeError, ValueError):  # unknown for this record
            yield ""
