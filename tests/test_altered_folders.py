"""Run folders in which values were altered at random: refused in a sentence, or shown."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepscope.analyze.comparison import compare
from stepscope.analyze.comparison_sides import read_sides
from stepscope.cli.export import FORMATS
from stepscope.errors import StepscopeError
from stepscope.experiments.labs.lab_runner import LabFolder
from stepscope.records.run_folder import read_record
from stepscope.records.run_reader import Run, load_run
from stepscope.records.types import LabRecord
from stepscope.report.html.chart_embed import for_page
from stepscope.report.html.html_page import body, chart_data, document_of, recorded_in
from stepscope.report.html.markdown import to_markdown
from stepscope.report.live.live_views import view_of, view_of_list
from stepscope.report.live.run_index import Library
from stepscope.report.terminal.compare_table import print_comparison
from stepscope.report.terminal.run_tables import print_run
from stepscope.report.terminal.verdict_text import print_conclusions

RECORDED = Path(__file__).parent / "helpers" / "recorded"
DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
VALUES = (
    *(None, True, 0, -1, 7, 1e-320, 1e300, 10**30, math.inf, -math.inf, math.nan),
    *("", "x", "\ud800", "\0", "../..", "\x1b[31m", "[red]", [], [1, 2], {}, {"x": 1}, DEEP),
)
FIELDS = ("", "x", "-1", "0", "1e300", "inf", "-inf", "nan", "9" * 30, "full", "\0", "1,1", "٣")

CONSOLE = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=80)


def alter(files: Sequence[Path], chance: random.Random) -> set[Path]:
    """Alter one to three places in these files; return those that were altered."""
    records = [file for file in files if file.suffix == ".json"]
    altered = set()
    for _ in range(chance.randint(1, 3)):
        file = chance.choice(records if chance.random() < 0.6 else files)
        altered.add(file)
        content = file.read_bytes() if file.exists() else b""
        if chance.random() < 0.05:
            file.unlink(missing_ok=True)
        elif chance.random() < 0.1 and content:
            place = chance.randrange(len(content))
            byte = chance.choice((b"", b"\0", b"\xff", b"}", b'"', b"\n", b"9", content[:place]))
            file.write_bytes(content[:place] + byte + content[place + chance.randint(0, 9) :])
        elif file.suffix == ".csv":
            file.write_text(_altered_table(content.decode(errors="replace"), chance))
        else:
            lines = content.splitlines() if file.suffix == ".jsonl" else [content]
            if lines:
                at = chance.randrange(len(lines))
                lines[at] = _altered_json(lines[at], chance)
            file.write_bytes(b"\n".join(lines) + b"\n")
    return altered


def _altered_table(text: str, chance: random.Random) -> str:
    lines = [line.split(",") for line in text.splitlines()] or [[""]]
    row = chance.choice(lines[chance.random() < 0.8 :] or lines)
    if chance.random() < 0.1:
        at = chance.randrange(len(lines[0]))  # a column that is missing
        lines = [line[:at] + line[at + 1 :] for line in lines]
    else:
        row[chance.randrange(len(row))] = chance.choice(FIELDS)
    return "".join(",".join(line) + "\n" for line in lines)


def _altered_json(content: bytes, chance: random.Random) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return content
    places: list[tuple[Any, Any]] = []
    below = [value]
    while below:
        each = below.pop()
        if isinstance(each, dict | list):
            inside = each.items() if isinstance(each, dict) else enumerate(each)
            places += ((each, key) for key, _ in inside)
            below += (item for _, item in inside if item is not DEEP)
    if places:
        holder, key = chance.choice(places)
        if chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = chance.choice(VALUES)
    return json.dumps(value).encode()


def _page(folder: Path) -> None:
    document = document_of(recorded_in(folder))
    page = "".join(body(document)) + chart_data([for_page(each) for each in document.charts()])
    assert (page + to_markdown(document)).encode("utf-8")
    findings = [each.to_json() for each in document.findings]
    json.dumps([findings, document.values], allow_nan=False)


def _terminal(folder: Path) -> None:
    recorded = recorded_in(folder)
    print_conclusions(CONSOLE, document_of(recorded))
    if isinstance(recorded, Run):
        print_run(CONSOLE, recorded)


def _compare(folder: Path) -> None:
    other = RECORDED / "run"
    sides = (str(folder),) if (folder / "sweep.json").exists() else (str(other), str(folder))
    found = compare(read_sides(sides))
    json.dumps(found, allow_nan=False)
    print_comparison(CONSOLE, found)


def _export(folder: Path) -> None:
    run = load_run(folder)
    for name in ("chrome", "tensorboard", "tsv"):
        for encode in FORMATS[name].files.values():
            for piece, _ in encode(run):
                assert isinstance(piece, bytes) or piece.encode("utf-8")


def _serve(folder: Path) -> None:
    library = Library(folder.parent)
    view_of_list(library.root, library.entries(), 2e9).version()
    try:
        view = view_of(library, [folder.name])
    except LookupError:
        return
    assert "Unexpected content" not in view.body, view.body
    view.version()


def _frames(folder: Path) -> None:
    run = load_run(folder)
    for table in (run.steps, run.epochs, run.telemetry, run.energy):
        table.to_polars()


def _record(folder: Path) -> None:
    read_record(folder, LabFolder.INFO, LabRecord, {})


# The slow ones once, the quick ones more often.
_OF_RUN = (_page, _terminal, _compare, _serve, *(_export,) * 3, *(_frames,) * 3)
USES: dict[str, tuple[Callable[[Path], None], ...]] = {
    "run": _OF_RUN,
    "trace": _OF_RUN,
    "sweep": (_page, _terminal, _compare, _serve),
    "lab": (_record, _record, _serve),
}


def use_altered(root: Path, first: int, count: int) -> None:
    """Use so many altered folders, each in one way."""
    contents = {}
    for file in sorted(RECORDED.rglob("*.*")):
        copy = root / file.relative_to(RECORDED)
        copy.parent.mkdir(parents=True, exist_ok=True)
        contents[copy] = file.read_bytes()
        copy.write_bytes(contents[copy])
    for seed in range(first, first + count):
        chance = random.Random(seed)
        kind = chance.choice(("run", "run", "run", "trace", "trace", "trace", "sweep", "lab"))
        altered = alter([file for file in contents if kind in file.parts], chance)
        use = chance.choice(USES[kind])
        try:
            with contextlib.suppress(StepscopeError):
                use(root / kind)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {kind}, {use.__name__}") from error
        finally:
            for file in altered:
                file.write_bytes(contents[file])


def test_altered_folders_are_refused_or_shown_and_never_end_in_a_traceback(tmp_path: Path) -> None:
    use_altered(tmp_path, 0, 2_000)


@pytest.mark.long
def test_many_altered_folders_are_refused_or_shown(tmp_path: Path) -> None:
    use_altered(tmp_path, 2_000, 100_000)
