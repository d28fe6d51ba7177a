"""`stepscope report`: the page of a run, of several, of a sweep."""

from __future__ import annotations

from json import dumps
from pathlib import Path

from rich.console import Console

from stepscope.analyze.what_if import what_if as predict
from stepscope.cli.completion import RunPath
from stepscope.cli.streams import AsJson, Switch
from stepscope.errors import RequestError, nearest
from stepscope.records import schema
from stepscope.records.run_folder import slug
from stepscope.records.run_reader import Run, load_run
from stepscope.records.sweep_folder import Sweep, is_sweep, load_sweep
from stepscope.records.types import ReportAnswer
from stepscope.report.charts.chart import save
from stepscope.report.html.html_page import FILE, document_of, write_page
from stepscope.report.html.markdown import to_markdown
from stepscope.report.html.page_content import Document
from stepscope.report.terminal.run_tables import print_run
from stepscope.report.terminal.verdict_text import print_conclusions
from stepscope.units import format_duration

_FORMATS = ("png", "svg", "pdf")
_ENDINGS = (".html", ".htm")


def report(
    *runs: RunPath,
    html: Path | None = None,
    charts: Path | None = None,
    format: str = "png",
    markdown: Switch = False,
    what_if: str | None = None,
    json: AsJson = False,
) -> int:
    """Write the report of a run, several runs or a sweep as one self-contained page.

    By default report.html goes into the folder of the run or sweep; for several runs, into the
    current folder.

    Parameters
    ----------
    runs
        Run folders, a folder of runs, or one sweep folder. A run may still be active.
    html
        The page to write, if not report.html.
    charts
        Write every chart as a file into this folder.
    format
        The format of those files: png, svg or pdf.
    markdown
        Print verdict, findings and figures as Markdown.
    what_if
        Predict what a change would bring, such as workers=4.
    """
    if what_if is not None:
        return _answer_what_if(runs, what_if, as_json=json)
    if markdown and json:
        raise RequestError("--markdown and --json both use standard output. Omit one.")
    if format not in _FORMATS:
        raise RequestError(f"format: unknown format {format!r}.{nearest(format, _FORMATS)}")
    if html is not None and html.suffix.lower() not in _ENDINGS:
        raise RequestError(f"html: wanted a file name that ends in .html, found {str(html)!r}.")
    recorded = _read(runs)
    document = document_of(recorded)
    if html is None and charts is None and not markdown and not json:
        html = recorded.path / FILE if isinstance(recorded, Run | Sweep) else Path(FILE)
    page = None if html is None else write_page(document, html)
    files = [] if charts is None else _save_charts(document, charts, format)
    if json:
        print(dumps(_as_json(document, page, files)))
    elif markdown:
        print(to_markdown(document), end="")
    else:
        print_conclusions(Console(), document)
        if isinstance(recorded, Run):
            print_run(Console(), recorded)
        for file in files:
            print(f"chart: {file}")
        if page is not None:
            print(f"report: {page}")
    return 0


def _answer_what_if(paths: tuple[Path, ...], question: str, *, as_json: bool) -> int:
    recorded = _read(paths)
    if not isinstance(recorded, Run):
        found = "a sweep" if isinstance(recorded, Sweep) else f"{len(recorded)} runs"
        raise RequestError(
            f"what-if: wanted one run, found {found}. Name it: stepscope report RUN --what-if "
            f"{question}"
        )
    expected = predict(recorded, question)
    if as_json:
        print(dumps(expected.to_json()))
        return 0
    low, high = expected.interval
    verb = "faster" if expected.speedup >= 1 else "the speed"
    print(
        f"With {expected.change} the run would take about {format_duration(expected.wall_s)}: "
        f"{expected.speedup:.2f} times {verb} (90 % interval: {low:.2f} to {high:.2f}), "
        f"{format_duration(expected.step_s)} a step."
    )
    return 0


def _read(paths: tuple[Path, ...]) -> Run | Sweep | list[Run]:
    if not paths:
        raise RequestError("wanted a run, found none: stepscope report runs/latest")
    if len(paths) == 1 and is_sweep(_folder(paths[0])):
        return load_sweep(paths[0])
    runs = [run for path in paths for run in _runs_at(path)]
    seen = [run.path for run in runs]
    for path in seen:
        if seen.count(path) > 1:
            raise RequestError(f"{path} is named more than once. Name each run once.")
    return runs[0] if len(runs) == 1 else runs


def _runs_at(path: Path) -> list[Run]:
    """Return a run, or all runs in a folder."""
    if is_sweep(_folder(path)):
        raise RequestError(f"{path} is a sweep. Name it alone: stepscope report {path}")
    inside = [] if (_folder(path) / schema.RUN).exists() else sorted(path.glob(f"*/{schema.RUN}"))
    # `latest` is a link to one of them.
    folders = [file.parent for file in inside if not file.parent.is_symlink()]
    return [load_run(folder) for folder in folders] or [load_run(path)]


def _folder(path: Path) -> Path:
    return path.parent if path.name in (schema.RUN, schema.SWEEP) else path


def _save_charts(document: Document, folder: Path, form: str) -> list[Path]:
    """Write every chart to a file named after its title."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"charts: cannot make the folder {folder}: {error.strerror}.") from error
    return [
        save(chart, folder / f"{slug(chart.title).lower()}.{form}") for chart in document.charts()
    ]


def _as_json(document: Document, page: Path | None, files: list[Path]) -> ReportAnswer:
    return {
        "title": document.title,
        "verdict": list(document.verdict),
        "findings": [finding.to_json() for finding in document.findings],
        "figures": document.values,
        "page": None if page is None else str(page),
        "charts": [str(file) for file in files],
    }
