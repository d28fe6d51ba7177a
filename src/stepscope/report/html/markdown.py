"""A report as Markdown, for an issue, a wiki or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stepscope.report.html.page_content import Document
from stepscope.report.terminal.table_style import FigureList

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")


def to_markdown(document: Document) -> str:
    """Return the verdict, the findings and the figures; charts are left to `--charts`."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Document) -> Iterator[str]:
    yield from (f"# {_text(document.title)}", "", _text(document.subtitle), "")
    for sentence in document.verdict:
        yield from (_text(sentence), "")
    if document.findings:
        yield from ("## Findings", "")
    for number, each in enumerate(document.findings, 1):
        yield f"{number}. **{_text(each.text)}**"
        yield from (f"   - {_text(evidence)}" for evidence in each.evidence)
        if each.command:
            yield f"   - {_code(each.command)}"
        yield ""
    for table in (*document.figures, *document.appendix):
        yield from (f"## {_text(table.title)}", "", *_table(table), "")


def _table(table: FigureList) -> Iterator[str]:
    yield _line(table.columns)
    yield "|".join(["", " --- ", *(" ---: " for _ in table.columns[1:]), ""])
    yield from map(_line, table.rows)
    if table.note:
        yield from ("", _text(table.note))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _text(words: str) -> str:
    """Escape text so that it is neither markup nor a new line."""
    return _MARKUP.sub(r"\\\1", " ".join(words.split()))


def _code(words: str) -> str:
    """Quote a command with more backticks than it contains in a row."""
    flat = " ".join(words.split())
    longest = max((len(ticks) for ticks in re.findall("`+", flat)), default=0)
    quote = "`" * (longest + 1)
    return f"{quote} {flat} {quote}" if longest else f"`{flat}`"
