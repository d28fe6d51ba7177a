"""The list of records: state, what, when, headline figures; and a choice of runs to compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from stepscope.records import schema
from stepscope.report.live_page.library import Entry
from stepscope.report.live_page.views import View, address
from stepscope.units import format_bytes, format_duration, format_share

_MOST_SHOWN = 1_000
_SILENT_S = 60.0  # a run writes at least once in so long: it takes samples of memory
_NOT_DONE = (schema.PENDING, schema.RUNNING, schema.INTERRUPTED)
_COLUMNS = ('<span class="unseen">compare</span>', "name", "state", "kind", "what", "started")
_FIGURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "samples/s": lambda summary: f"{summary['samples_per_s']:,.0f}",
    "waiting for data": lambda summary: format_share(summary["phases"]["data"]["share"]),
    "test accuracy": lambda summary: format_share(summary["test_accuracy"]),
    "peak memory": lambda summary: format_bytes(summary["peak_memory_bytes"]),
}


def view_of_list(root: Path, entries: Sequence[Entry], now_unix_s: float) -> View:
    """Show every record as a row, the newest first."""
    html = "".join(_body(root, entries, now_unix_s))
    goes_on = any(entry.info.get("status") == schema.RUNNING for entry in entries)
    return View("Runs", html, [], goes_on)


def _body(root: Path, entries: Sequence[Entry], now_unix_s: float) -> Iterator[str]:
    yield '<a class="skip" href="#main">Skip to the runs</a>\n<header>\n<h1>Runs</h1>\n'
    yield f'<p>{escape(str(root))}</p>\n</header>\n<main id="main" tabindex="-1">\n'
    if not entries:
        yield from _nothing_yet(root)
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


def _nothing_yet(root: Path) -> Iterator[str]:
    out = "" if root.name == "runs" else f" --out {root}"
    yield "<p>There are no runs here yet. Make one, and it appears by itself:</p>\n"
    for command in (f"stepscope run{out}", f"stepscope trace{out} your_script.py"):
        yield f"<p><code>{escape(command)}</code></p>\n"


def _row(entry: Entry, now_unix_s: float) -> str:
    name, info = escape(entry.name), entry.info
    shown = escape(str(info.get("name") or entry.name.rpartition("/")[2]))
    to = escape(address(entry.name))
    choice = ""
    if not entry.problem and info.get("kind") in ("run", "trace"):
        choice = f'<input type="checkbox" name="run" value="{name}" aria-label="Compare {name}">'
    named = f'<a href="{to}">{shown}</a><span class="folder">{name}</span>'
    state = _state(entry, now_unix_s)
    cells = (escape(str(info.get("kind", "?"))), _what(info), _started(info), *_figures(info))
    return (
        f'<tr id="{to}"><td>{choice}</td><th scope="row">{named}</th>{state}'
        f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
    )


def _state(entry: Entry, now_unix_s: float) -> str:
    if entry.problem:
        return f'<td class="state failed">unreadable<span>{escape(entry.problem)}</span></td>'
    status = str(entry.info.get("status", "?"))
    why = str(entry.info.get("reason") or "")
    why = "" if why == status else why
    silent_s = now_unix_s - entry.changed_unix_s
    if status == schema.RUNNING and silent_s > _SILENT_S:
        # By the minute, so that the list does not change with every look at it.
        why = f"nothing written for {format_duration(silent_s // 60 * 60)}: was it killed?"
    more = f"<span>{escape(why)}</span>" if why else ""
    known = (schema.RUNNING, schema.COMPLETED)
    kind = status if status in known else "failed"
    return f'<td class="state {kind}">{escape(status.replace("_", " "))}{more}</td>'


def _what(info: dict[str, Any]) -> str:
    spec, trials = info.get("spec"), info.get("trials")
    if isinstance(trials, list):
        states = [each.get("status") for each in trials if isinstance(each, dict)]
        done = sum(state not in _NOT_DONE for state in states)
        return f"{done:,} of {len(trials):,} trials"
    if not isinstance(spec, dict):
        return ""
    script = spec.get("module") or spec.get("script") or info.get("script")
    if script or not spec.get("model"):
        return escape(str(script or ""))
    return escape(f"{spec['model']} on {spec.get('data', '?')}")


def _started(info: dict[str, Any]) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(info.get("started_unix_s") or None))
    except (TypeError, ValueError, OverflowError, OSError):  # whatever somebody wrote there
        return ""


def _figures(info: dict[str, Any]) -> Iterator[str]:
    summary = info.get("summary")
    for form in _FIGURES.values():
        try:
            yield escape(form(summary or {}))
        except (KeyError, TypeError, ValueError):  # not known of this one
            yield ""
