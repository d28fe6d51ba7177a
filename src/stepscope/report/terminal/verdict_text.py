"""The end of a run on the terminal: the verdict first, then one step as bars, then what is next."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

from rich.console import Console
from rich.text import Text

from stepscope.analyze.findings import Finding, findings_of
from stepscope.analyze.verdict import expected_speedup
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import PhaseTime, Summary
from stepscope.report.terminal.table_style import printable, say
from stepscope.units import duration_format, format_bytes, format_duration, format_share

_WIDTH = 80
_BAR = 22
_MOST_FINDINGS = 3
_LEAST_SPEEDUP = 1.02


def print_verdict(console: Console, run: Run) -> None:
    """Print what was found, what to do and what it would bring, in about 20 lines."""
    summary, findings = run.summary, findings_of(run)
    verdict = summary.get("verdict")
    console.print()
    if verdict is not None:
        _print_prose(console, verdict["text"], style="bold")
        if verdict["command"]:
            say(console, f"  Prove it:  {printable(verdict['command'])}")
        console.print()
    say(console, f"  {'   '.join(_figures(run))}")
    if phases := summary.get("phases"):
        console.print()
        for line in _phase_lines(summary, phases):
            console.print(line, soft_wrap=True)
    others = [each for each in findings if verdict is None or each.name != verdict["cause"]]
    if others:
        console.print()
    for number, finding in enumerate(others[:_MOST_FINDINGS]):
        first = "Then: " if number == 0 else "      "
        _print_prose(console, f"{first}{_in_short(finding, summary.get('wall_s'))}", hang=8)


def _print_prose(console: Console, text: str, *, style: str = "", hang: int = 2) -> None:
    lines = fill(
        printable(text),
        min(_WIDTH, console.width),
        initial_indent="  ",
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    say(console, lines, style=style)


def _figures(run: Run) -> Iterator[str]:
    """Yield the figures of the whole run that fit one line."""
    summary = run.summary
    if run.status != schema.COMPLETED:
        yield run.status.replace("_", " ")
    if phases := summary.get("phases"):
        yield f"step {format_duration(sum(phase['mean_s'] for phase in phases.values()))}"
    else:
        yield f"{summary.get('steps') or 0:,} steps"
    if (rate := summary.get("samples_per_s")) is not None:
        yield f"{rate:,.0f} samples/s"
    if (peak_bytes := summary.get("peak_memory_bytes")) is not None:
        total = run.info.get("environment", {}).get("memory_bytes")
        of = f" of {format_bytes(total)}" if total else ""
        yield f"peak memory {format_bytes(peak_bytes)}{of}"
    accuracy = summary.get("test_accuracy")
    if accuracy is not None:
        yield f"test accuracy {format_share(accuracy)}"


def _phase_lines(summary: Summary, phases: dict[str, PhaseTime]) -> Iterator[Text]:
    shown = duration_format(phase["mean_s"] for phase in phases.values())
    most = max(phase["share"] for phase in phases.values()) or 1.0
    for name in schema.PHASES:
        phase = phases[name]
        bar = "█" * round(phase["share"] / most * _BAR) or ("▏" if phase["share"] else "")
        line = Text(f"  {name:<9} {format_share(phase['share']):>7} {shown(phase['mean_s']):>9}  ")
        line.append(f"{bar:<{_BAR}}  ", style="cyan")
        line.append(printable(_note(summary, name))[: _WIDTH - len(line.plain)], style="dim")
        line.rstrip()
        yield line


def _note(summary: Summary, phase: str) -> str:
    """Return what takes most of a phase, if it is known."""
    loader = summary.get("loader")
    if phase == "data" and loader and loader["parts"]:
        part = loader["parts"][0]
        return f"{part['name']} {format_share(part['share'])}"
    if phase != "other":
        return ""
    for each in summary.get("stacks") or ():
        if each["where"] == "other" and each["line"]:
            return f"{each['line']} {each['activity'] or ''}".strip()
    return ""


def _in_short(finding: Finding, wall_s: float | None) -> str:
    """Return a finding, what to change and what that would bring."""
    if not finding.saves_s or not wall_s or not finding.change:
        return finding.text
    speedup, _ = expected_speedup(wall_s, finding.saves_s)
    change = f"{finding.change[0].upper()}{finding.change[1:]}"
    if speedup < _LEAST_SPEEDUP:
        return f"{finding.text} {change}."
    saved = format_duration(finding.saves_s)
    return f"{finding.text} {change}: {saved} less."
