"""The energy of a run as a table, and as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.report.html.page_content import FigureList
from stepscope.units import format_duration


def about_energy(energy: Mapping[str, Any]) -> str | None:
    """Return one line on the energy of a run and its sensors; None without a total."""
    if energy.get("joules") is None:
        return None
    sensors = {domain: each["sensor"] for domain, each in energy["domains"].items()}
    by = ", ".join(f"{domain} ({sensors[domain]})" for domain in energy["covers"])
    idle = energy.get("idle_w")
    beside = "" if idle is None else f", {idle:.1f} W before it ran"
    return f"energy {_joules(energy['joules'])}, {energy['mean_w']:.1f} W on average{beside}: {by}"


def energy_figures(energy: Mapping[str, Any] | None) -> FigureList:
    """Return a table of the joules by run, domain, phase and epoch."""
    rows: list[list[str]] = []
    for name, each in [*_total(energy or {}), *((energy or {}).get("domains") or {}).items()]:
        rows.append([name, _joules(each["joules"]), "measured", "", _period(each)])
        rows += [[f"{name}: {phase}", *_phase(found)] for phase, found in _phases(each)]
    rows += [
        [f"epoch {each['epoch']}, {each['split']}", _joules(each["joules"]), "measured", "", ""]
        for each in (energy or {}).get("epochs") or ()
        if each["joules"] is not None
    ]
    columns = ["what", "energy", "how", "95 % interval", "sensor, period"]
    return FigureList("Energy", columns, rows, _note(energy or {}))


def _total(energy: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    several = len(energy.get("covers") or ()) > 1
    return [("total", energy)] if several and energy.get("joules") is not None else []


def _phases(each: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    phases = (each.get("phases") or {}).items()
    return [(phase, found) for phase, found in phases if found["joules"] is not None]


def _phase(found: Mapping[str, Any]) -> list[str]:
    interval = found["interval"]
    shown = "" if interval is None else f"{_joules(interval[0])} to {_joules(interval[1])}"
    return [_joules(found["joules"]), str(found["how"]), shown, ""]


def _period(each: Mapping[str, Any]) -> str:
    period_s = each.get("period_s")
    every = "" if period_s is None else f"every {format_duration(period_s)}"
    return ", ".join(filter(None, [each.get("sensor"), every]))


def _note(energy: Mapping[str, Any]) -> str:
    said = []
    if energy.get("covers"):
        said.append(f"the total covers {', '.join(energy['covers'])}")
    if energy.get("leaves_out"):
        said.append(f"it leaves out {'; '.join(energy['leaves_out'])}")
    if energy.get("bridged_s"):
        said.append(f"{format_duration(energy['bridged_s'])} were bridged at the mean power")
    return ". ".join(said)


def _joules(joules: float) -> str:
    if abs(joules) >= 1e4:
        return f"{joules / 1e3:,.1f} kJ"
    return f"{joules:,.1f} J" if abs(joules) >= 10 else f"{joules:.3g} J"
