"""A lab's sheet: a TOML file in `sheets` with the question, the settings, the table and the plots.

Its `[over]` gives every combination of values, each combined with every one of its `[[settings]]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from stepscope.experiments.trial_order import grid
from stepscope.records.types import LabPlot, MissingPart, SettingValue
from stepscope.settings.load_settings import tomllib

_SHEETS = resources.files(__package__).joinpath("sheets")


@dataclass(frozen=True)
class Setting:
    """One thing to try; `shown` are columns of the table that are no settings."""

    values: Mapping[str, SettingValue]
    shown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sheet:
    """A lab as its sheet describes it."""

    name: str
    about: str
    question: str
    published: str
    run: Mapping[str, SettingValue]  # the settings of every trial
    settings: tuple[Setting, ...]
    columns: Mapping[str, str]  # headings, by the figure of a row
    epochs: int
    samples: int | None = None  # None: all of the user's data
    repeats: int = 1  # 0: the procedure decides
    needs: Mapping[str, str] = field(default_factory=dict)  # required flags, described
    each_counts: bool = False  # a single setting also has an answer
    store: bool = False  # --source names a store for the lab, and is no setting of every trial
    procedure: str = "sweep"
    answer: str = ""  # of a sweep: a function of `lab_answers`
    rows: Literal["settings", "epochs"] = "settings"
    figures: tuple[str, ...] = ()  # of the trials
    counted: tuple[str, ...] = ()  # of the network
    by_epoch: Mapping[str, str] = field(default_factory=dict)
    board_protocol: bool = False  # also check the machine against the protocol for small boards
    plots: tuple[LabPlot, ...] = ()
    missing: tuple[MissingPart, ...] = ()  # parts of the experiment that this version cannot do


def read_sheet(name: str) -> Sheet:
    """Read the sheet of a lab."""
    written = tomllib.loads(_SHEETS.joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    combinations = grid(written.pop("over", {}))
    settings = tuple(
        Setting({**values, **listed}, shown)
        for listed in written.pop("settings", [{}])
        for shown in [listed.pop("shown", {})]
        for values in combinations
    )
    for many in ("figures", "counted", "plots", "missing"):
        written[many] = tuple(written.get(many, ()))
    return Sheet(name=name, settings=settings, **written)


def sheet_names() -> list[str]:
    """List the labs that have a sheet."""
    files = _SHEETS.iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
