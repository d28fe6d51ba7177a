"""What there is to see of the records below a folder: a record, or several runs side by side.

A view is what the page of the report shows, for a page that is there already.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stepscope.errors import StepscopeError
from stepscope.records import schema
from stepscope.records.reader import Run, load_run
from stepscope.records.sweep import Sweep, load_sweep
from stepscope.records.table import Table, read_table
from stepscope.report.live_page.library import Library
from stepscope.report.page import body
from stepscope.report.page_charts import for_page
from stepscope.report.page_file import document_of

Recorded = Run | Sweep | list[Run]


@dataclass(frozen=True)
class View:
    """A page without its frame: HTML in which whatever people named is escaped, and its charts."""

    title: str
    body: str
    charts: list[dict[str, Any]]
    goes_on: bool = False

    def version(self) -> str:
        """Name what is seen: the same name, the same sight."""
        seen = json.dumps([self.title, self.body, self.charts, self.goes_on])
        return hashlib.sha256(seen.encode()).hexdigest()[:16]


def view_of(
    library: Library, names: Sequence[str], read: Callable[[Path], Table] = read_table
) -> View:
    """Show the record of that name or, of several names, the runs side by side.

    Raises:
        NotThereError: one of them is not there.
    """
    folders = [library.find(name) for name in names]
    try:
        recorded = _load(folders, read)
        document = document_of(recorded)
        charts = [for_page(chart) for chart in document.charts()]
        html = "".join((*body(document), *_trials(library, recorded)))
    except StepscopeError as error:
        return message("This cannot be shown", ", ".join(names), str(error))
    except Exception as error:
        # A record may hold anything. What the analysis stumbles over is said on its page; the
        # others are served on.
        why = f"{type(error).__name__}: {error}"
        told = f"Something in the record does not fit: {why}."
        return message("This cannot be shown", ", ".join(names), told)
    return View(document.title, html, charts, _goes_on(recorded))


def message(title: str, *sentences: str, goes_on: bool = False) -> View:
    """Say something in place of a record."""
    told = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in sentences)
    html = f'<header>\n<h1>{escape(title)}</h1>\n</header>\n<main id="main">\n{told}</main>\n'
    return View(title, html, [], goes_on)


def address(name: str) -> str:
    """Return where a record is shown, whatever letters its name has."""
    return f"/runs/{quote(os.fsencode(name))}"


def _load(folders: Sequence[Path], read: Callable[[Path], Table]) -> Recorded:
    if len(folders) > 1:
        return [load_run(folder, read) for folder in folders]
    folder = folders[0]
    return load_sweep(folder) if (folder / schema.SWEEP).exists() else load_run(folder, read)


def _goes_on(recorded: Recorded) -> bool:
    if isinstance(recorded, list):
        return any(map(_goes_on, recorded))
    return recorded.info.get("status") == schema.RUNNING


def _trials(library: Library, recorded: Recorded) -> Iterator[str]:
    """Lead from a sweep to its runs."""
    if not isinstance(recorded, Sweep):
        return
    folders = [recorded.folder_of(trial) for trial in recorded.trials]
    yield '<nav class="trials" aria-label="Runs of the sweep">\n<h2>Runs</h2>\n<ul>\n'
    for folder in folders:
        if (folder / schema.RUN).exists():
            name = folder.relative_to(library.root).as_posix()
            yield f'<li><a href="{escape(address(name))}">{escape(folder.name)}</a></li>\n'
    yield "</ul>\n</nav>\n"
