"""A report as Markdown, for an issue, a wiki or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.report.expected_gain import change_of, gain_of
from stepscope.report.html.page_content import Document, split_at

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")


def to_markdown(document: Document) -> str:
    """Return the verdict, the findings and the figures; charts are left to `--charts`."""
    lines = [f"# {_text(document.title)}", "", _text(document.subtitle), ""]
    for sentence in document.verdict:
        parts = map(_prose, split_at(sentence, document.stressed))
        said = (f"**{each}**" if place % 2 else each for place, each in enumerate(parts))
        lines += ["".join(said), ""]
    if document.command:
        lines += [f"Prove it: {_code(document.command)}", ""]
    if document.findings:
        lines += ["## Findings", ""]
    for number, each in enumerate(document.findings, 1):
        change, gain = change_of(each), gain_of(each, document.wall_s)
        brings = f" ({_prose(gain)})" if gain else ""
        lines.append(f"{number}. **{_prose(change or each.text)}**{brings}")
        lines += [f"   - {_prose(each.text)}"] if change else []
        lines += [f"   - {_prose(evidence)}" for evidence in each.evidence]
        if each.command:
            lines.append(f"   - {_code(each.command)}")
        lines.append("")
    insights = (table for section in document.insights for table in section.figures)
    for table in (*insights, *document.figures, *document.appendix):
        lines += [f"## {_prose(table.title)}", "", _row(table.columns)]
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
    parts = re.split("`([^`]+)`", re.sub(r"\s+", " ", sentence))  # at odd places, what is quoted
    return "".join(
        _code(each) if at % 2 else _MARKUP.sub(r"\\\1", each) for at, each in enumerate(parts)
    )


def _code(words: str) -> str:
    """Quote a command with more backticks than it contains in a row."""
    flat = " ".join(words.split())
    longest = max((len(ticks) for ticks in re.findall("`+", flat)), default=0)
    quote = "`" * (longest + 1)
    return f"{quote} {flat} {quote}" if longest else f"`{flat}`"
