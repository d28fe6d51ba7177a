"""A report as Markdown, for an issue, a wiki or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.report.html.page_content import Document

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")


def to_markdown(document: Document) -> str:
    """Return the verdict, the findings and the figures; charts are left to `--charts`."""
    lines = [f"# {_text(document.title)}", "", _text(document.subtitle), ""]
    for sentence in document.verdict:
        lines += [_prose(sentence), ""]
    if document.findings:
        lines += ["## Findings", ""]
    for number, each in enumerate(document.findings, 1):
        lines.append(f"{number}. **{_prose(each.text)}**")
        lines += [f"   - {_prose(evidence)}" for evidence in each.evidence]
        if each.command:
            lines.append(f"   - {_code(each.command)}")
        lines.append("")
    for table in (*document.figures, *document.appendix):
        lines += [f"## {_text(table.title)}", "", _row(table.columns)]
        lines.append("|".join(["", " --- ", *(" ---: " for _ in table.columns[1:]), ""]))
        lines += map(_row, table.rows)
        lines += ["", _prose(table.note), ""] if table.note else [""]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _text(words: str) -> str:
    """Escape text so that it is neither markup nor a new line."""
    return _MARKUP.sub(r"\\\1", " ".join(words.split()))


def _prose(sentence: str) -> str:
    """Escape a sentence, except for what it quotes in backticks."""
    parts = re.split("`([^`]+)`", " ".join(sentence.split()))  # at odd places, what is quoted
    return "".join(
        _code(each) if at % 2 else _MARKUP.sub(r"\\\1", each) for at, each in enumerate(parts)
    )


def _code(words: str) -> str:
    """Quote a command with more backticks than it contains in a row."""
    flat = " ".join(words.split())
    longest = max((len(ticks) for ticks in re.findall("`+", flat)), default=0)
    quote = "`" * (longest + 1)
    return f"{quote} {flat} {quote}" if longest else f"`{flat}`"
