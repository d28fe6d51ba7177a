"""What the docs say is so: tables equal the source, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from docs_pages import PAGES, ROOT, name_of
from test_architecture import MAY_IMPORT

from stepscope.models import registry
from stepscope.records import schema
from stepscope.supervisor.script_child import TraceRequest


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section_of(name: str, heading: str) -> str:
    """Give the text below a heading, up to the next of its rank."""
    mark, _, _ = heading.partition(" ")
    below = text_of(name).split(f"\n{heading}\n")[1]
    return below.split(f"\n{mark} ")[0]


# --- tables ---------------------------------------------------------------------------------------


def tables_of(text: str) -> list[list[list[str]]]:
    """Give every table as its rows of cells, without the header; a name loses its backticks."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
        found.append([[row[0].strip("`"), *row[1:]] for row in rows[2:-1]])
    return found


@pytest.mark.parametrize("file", schema.COLUMNS)
def test_every_column_is_in_the_table_of_its_file_in_order(file):
    section = section_of("docs/reference/run-folder.md", f"## `{file}`")
    assert [row[0] for row in tables_of(section)[0]] == list(schema.COLUMNS[file])


def test_every_status_and_every_field_of_the_summary_is_documented():
    from stepscope.analyze.run_summary import Measured, summarize
    from stepscope.records.run_reader import EMPTY_RUN, Run

    tables = tables_of(text_of("docs/reference/run-folder.md"))
    # One row may name several fields: `energy_j`, `energy`.
    documented = {name for rows in tables for row in rows for name in re.findall(r"\w+", row[0])}
    statuses = {schema.RUNNING, schema.COMPLETED, schema.INTERRUPTED, schema.OUT_OF_MEMORY}
    assert statuses | {schema.FAILED} <= documented
    assert (
        set(summarize(Run(Path("nowhere"), {**EMPTY_RUN, "status": "completed"}), Measured()))
        <= documented
    )


def test_every_field_of_a_trace_s_spec_is_documented():
    section = section_of("docs/reference/run-folder.md", "### Spec of a trace")
    documented = set(re.findall(r"`(\w+)`", section))
    assert {each.name for each in fields(TraceRequest)} | {"directory", "rank"} <= documented


def test_the_versions_of_frameworks_are_those_that_are_pinned():
    pinned = text_of("constraints.txt")
    section = section_of("docs/explanation/trace.md", "## Frameworks")
    for library, version, _ in tables_of(section)[0]:
        assert f"\n{library}=={version}" in pinned


def test_every_phase_is_defined_for_a_script():
    section = section_of("docs/explanation/trace.md", "## What a phase is")
    assert [row[0] for row in tables_of(section)[0]] == list(schema.PHASES)


def test_every_finding_is_in_the_table_of_findings():
    called = r'(?:Finding|saving|_Cause|_Change)\(\s*(?:view,\s*)?"(\w+)"'
    made = re.compile(called + r'|^    "\w+": \("(slow_\w+)",', re.MULTILINE)
    modules = (ROOT / "src/stepscope/analyze/findings").glob("*_findings.py")
    names = {
        one or other for module in modules for one, other in made.findall(module.read_text("utf-8"))
    }
    assert len(names) > 40
    section = section_of("docs/how-to/reports.md", "## Findings")
    assert names <= set(re.findall(r"`(\w+)`", section))


def test_every_exit_code_is_documented():
    from stepscope import errors

    codes = {
        str(kind.exit_code)
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.StepscopeError)
    }
    section = section_of("docs/reference/run-folder.md", "## Exit codes")
    assert {row[0] for row in tables_of(section)[0]} == codes | {"0"}


def test_the_zoo_table_equals_the_registry():
    import torch
    from torch import nn

    found = []
    for name, entry in registry.ZOO.items():
        with torch.device("meta"):
            model = registry.build(name, classes=entry.classes)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
        shape = "x".join(map(str, entry.input_shape))
        counts = [str(entry.classes), f"{parameters:,}", str(convolutions)]
        found.append([name, shape, *counts])
    table = tables_of(text_of("docs/reference/models-and-data.md"))[0]
    assert [[name, *counts] for name, _, *counts in table] == found


def test_the_package_table_equals_the_one_that_is_tested():
    rows = tables_of(text_of("docs/architecture.md"))[0]
    assert {row[0]: frozenset(re.findall(r"`(\w+)`", row[2])) for row in rows} == MAY_IMPORT


def test_every_page_is_in_the_navigation_of_the_site():
    listed = set(re.findall(r": (\S+\.md)$", text_of("mkdocs.yml"), re.MULTILINE))
    docs = ROOT / "docs"
    assert listed == {page.relative_to(docs).as_posix() for page in docs.glob("**/*.md")}


# --- links and places -----------------------------------------------------------------------------


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or bool(anchor and anchor not in anchors_of(target))


def test_links_between_pages_resolve():
    assert [
        f"{name_of(page)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in link and leads_nowhere(page, link)
    ] == []


def test_every_page_can_be_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
            ahead += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert set(PAGES) <= reached


def test_no_file_names_a_place_on_the_machine_it_was_written_on():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    places = [f"/{top}/".encode() for top in ("work", "root")]
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert [
        name_of(file)
        for file in files
        if file.is_file() and any(place in file.read_bytes() for place in places)
    ] == []
