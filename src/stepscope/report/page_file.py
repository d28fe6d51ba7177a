"""The page as a file: of a run, of a sweep, of several runs."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from pathlib import Path

from stepscope.analyze.findings import findings_of
from stepscope.analyze.groups import group_runs
from stepscope.analyze.search_result import is_search
from stepscope.errors import DISK_FULL_ERRNOS, RequestError, disk_full
from stepscope.records.reader import Run, load_run
from stepscope.records.sweep import Sweep, is_sweep, load_sweep
from stepscope.report.document import Document
from stepscope.report.page import to_html
from stepscope.report.run_document import document_of_run
from stepscope.report.search_document import document_of_search
from stepscope.report.several_document import document_of_groups, document_of_sweep
from stepscope.report.vega_script import vega_script

FILE = "report.html"


def document_of(recorded: Run | Sweep | Sequence[Run]) -> Document:
    """Put together the report of whatever was recorded."""
    if isinstance(recorded, Run):
        return document_of_run(recorded, findings_of(recorded))
    if isinstance(recorded, Sweep):
        return document_of_search(recorded) if is_search(recorded) else document_of_sweep(recorded)
    return document_of_groups(group_runs(recorded))


def write_page_of(folder: Path) -> Path:
    """Write `report.html` into the folder of a run or a sweep; return its path.

    Raises:
        RequestError: the folder is none, or cannot be written.
        MachineError: the disk is full, or what draws a page is missing.
    """
    recorded = load_sweep(folder) if is_sweep(folder) else load_run(folder)
    return write_page(document_of(recorded), folder / FILE)


def write_page(document: Document, target: Path) -> Path:
    """Write a page in one move, so that it is whole or not there."""
    page = to_html(document, vega_script())
    beside = target.with_name(f".{uuid.uuid4().hex[:8]}.tmp")
    try:
        # Half of a surrogate pair, which JSON can name, is no letter that a file can hold.
        beside.write_text(page, encoding="utf-8", errors="replace")
        beside.replace(target)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(target)) from error
        raise RequestError(
            f"cannot write {target}: {error.strerror}. Choose another file with "
            "stepscope report RUN --html FILE."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # mostly: it is not there
            beside.unlink()
    return target
