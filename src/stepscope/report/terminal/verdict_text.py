"""The end of a run on the terminal: the verdict first, then one step as bars, then what is next."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from textwrap import shorten, wrap

from rich.console import Console
from rich.text import Text

from stepscope.analyze.findings import Finding, findings_of
from stepscope.analyze.what_if import expected_speedup
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import PhaseTime, Summary
from stepscope.report.expected_gain import change_of, gain_of, phrases_to_stress
from stepscope.report.html.page_content import Document
from stepscope.report.palette import PHASE_COLOURS
from stepscope.report.terminal.run_tables import about_ending
from stepscope.report.terminal.table_style import printable, say
from stepscope.units import (
    duration_format,
    format_bytes,
    format_count,
    format_duration,
    format_share,
)

_WIDTH = 80
_BAR = 22
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MOST_FINDINGS = 3
_MOST_LINES = 4  # of all findings, so that the whole has about 20
_LEAST_SPEEDUP = 1.02


def print_verdict(console: Console, run: Run) -> None:
    """Print what was found, what to do and what it would bring, in about 20 lines."""
    summary, findings = run.summary, findings_of(run)
    verdict = summary.get("verdict")
    width = min(_WIDTH, console.width)
    console.print()
    if (ending := about_ending(run)) is not None:
        console.print(_stressed(_wrapped(ending, width), ()), soft_wrap=True)
        if verdict is not None and not verdict["expected_speedup"]:
            verdict = None  # it says no more than that
        if verdict is None:
            console.print()
    if verdict is not None:
        lines = _wrapped(verdict["text"], width)
        console.print(_stressed(lines, phrases_to_stress(verdict, findings)), soft_wrap=True)
        if verdict["command"]:
            say(console, f"  Prove it:  {printable(verdict['command'])}")
        console.print()
    say(console, *_side_by_side(_figures(run), width))
    if phases := summary.get("phases"):
        console.print()
        for line in _phase_lines(summary, phases, width):
            console.print(line, soft_wrap=True)
    others = [each for each in findings if verdict is None or each.name != verdict["cause"]]
    if others:
        console.print()
        first = "Then: " if verdict and verdict["expected_speedup"] else "Found: "
        say(console, *_finding_lines(others, first, summary.get("wall_s"), width))


def print_conclusions(console: Console, document: Document) -> None:
    """Print the verdict of a report, then all of its findings with their evidence."""
    width = min(_WIDTH, console.width)
    for sentence in document.verdict:
        lines = _wrapped(sentence, width, "", 0)
        text = _stressed(lines, document.stressed) if sentence == document.verdict[0] else None
        console.print(Text("\n".join(lines)) if text is None else text, soft_wrap=True)
    if document.command:
        say(console, f"Prove it:  {printable(document.command)}")
    for number, finding in enumerate(document.findings, 1):
        gain, change = gain_of(finding, document.wall_s), change_of(finding)
        said = f"{finding.text} {change}{f': {gain}' if gain else ''}." if change else finding.text
        lead = f"{number}. "
        console.print()
        say(console, *_wrapped(said, width, lead, len(lead)))
        for each in finding.evidence:
            say(console, *_wrapped(each, width, "   - ", 5))
        if finding.command and finding.command != document.command:
            say(console, f"   {printable(finding.command)}")


def _wrapped(text: str, width: int, first: str = "  ", hang: int = 2) -> list[str]:
    return wrap(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _stressed(lines: Sequence[str], phrases: Sequence[str]) -> Text:
    """Return the verdict in bold, with the change and the gain in colour."""
    text = Text("\n".join(lines), style="bold")
    for phrase in phrases:
        words = r"\s+".join(map(re.escape, printable(phrase).split()))
        if found := re.search(words, text.plain):
            text.stylize("green", *found.span())
    return text


def _side_by_side(figures: Iterator[str], width: int) -> list[str]:
    """Join figures on one line, or on more if they do not fit."""
    lines: list[str] = []
    for figure in figures:
        joined = f"{lines[-1]}   {figure}" if lines else ""
        if joined and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(f"  {figure}")
    return lines


def _finding_lines(
    findings: Sequence[Finding], first: str, wall_s: float | None, width: int
) -> list[str]:
    """Return findings while there is room; the first one always has it."""
    lines: list[str] = []
    for finding in findings[:_MOST_FINDINGS]:
        lead = f"  {' ' * len(first) if lines else first}"
        more = _wrapped(_in_short(finding, wall_s), width, lead, len(lead))
        if lines and len(lines) + len(more) > _MOST_LINES:
            break
        lines += more
    return lines


def _figures(run: Run) -> Iterator[str]:
    """Yield the figures of the whole run that fit one line."""
    summary = run.summary
    if phases := summary.get("phases"):
        yield f"step {format_duration(sum(phase['mean_s'] for phase in phases.values()))}"
    elif steps := summary.get("steps"):
        yield format_count(steps, "step")
    if summary.get("steps_inferred"):
        yield "steps inferred: no torch optimiser"
    if (rate := summary.get("samples_per_s")) is not None:
        yield f"{rate:,.0f} samples/s"
    if (peak_bytes := summary.get("peak_memory_bytes")) is not None:
        total = run.info.get("environment", {}).get("memory_bytes")
        of = f" of {format_bytes(total)}" if total else ""
        yield f"peak memory {format_bytes(peak_bytes)}{of}"
    accuracy = summary.get("test_accuracy")
    if accuracy is not None:
        yield f"test accuracy {format_share(accuracy)}"


def _phase_lines(summary: Summary, phases: dict[str, PhaseTime], width: int) -> Iterator[Text]:
    shown = duration_format(phase["mean_s"] for phase in phases.values())
    most = max(phase["share"] for phase in phases.values()) or 1.0
    for name in schema.PHASES:
        phase = phases[name]
        line = Text(f"  {name:<9} {format_share(phase['share']):>7} {shown(phase['mean_s']):>9}  ")
        line.append(f"{_bar(phase['share'] / most):<{_BAR}}  ", style=PHASE_COLOURS[name])
        line.append(_fitting(_notes(summary, name), width - len(line.plain)), style="dim")
        line.rstrip()
        yield line


def _bar(share: float) -> str:
    """Return a bar in eighths of a letter; what is not zero is visible."""
    eighths = max(round(share * _BAR * 8), int(share > 0))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def _notes(summary: Summary, phase: str) -> Iterator[str]:
    """Yield what takes most of a phase, if it is known: the longest form first."""
    loader = summary.get("loader")
    if phase == "data" and loader and loader["parts"]:
        shares: dict[str, float] = defaultdict(float)
        for part in loader["parts"]:
            shares[part["name"]] += part["share"]
        name = max(shares, key=shares.__getitem__)
        yield f"{name} {format_share(shares[name])}"
    elif phase == "other":
        for each in summary.get("stacks") or ():
            if each["where"] == "other" and each["line"]:
                named = filter(None, (each["code"], each["activity"]))
                yield from (f"{name}, {each['line']}" for name in named)
                yield each["line"]
                break


def _fitting(notes: Iterator[str], room: int) -> str:
    """Return the first note that fits, or the last one cut between words."""
    note = ""
    for each in notes:
        note = " ".join(printable(each).split())
        if len(note) <= room:
            return note
    return shorten(note, room, placeholder=" …") if room > 0 and " " in note else ""


def _in_short(finding: Finding, wall_s: float | None) -> str:
    """Return a finding, what to change and what that would bring."""
    if not finding.saves_s or not wall_s or not finding.change:
        return finding.text
    speedup, _ = expected_speedup(wall_s, finding.saves_s)
    brings = "" if speedup < _LEAST_SPEEDUP else f": {format_duration(finding.saves_s)} less"
    return f"{finding.text} {change_of(finding)}{brings}."
