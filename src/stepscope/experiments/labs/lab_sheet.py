"""A lab's sheet: the TOML file that says what is asked, what is run for it and what is shown.

about, question, published   words
samples, epochs, repeats     the whole experiment; `--scale` takes a share of the first two, and
                             0 repeats leave their number to the lab; without `samples` the whole
                             is what the user's data has
[needs]                      flags that must be given, and what each is
each_counts                  every setting has an answer of its own: flags may leave a single one
store                        `--source` is an object store that the lab itself makes use of, and no
                             setting of every trial
[run]                        the settings of every trial
[over], [[settings]]         what is varied: every combination of values, one setting after the
                             other, or every one of those with each of these; `shown` are words of
                             the sheet's own for the table
procedure                    how the lab is run; without it, every setting is a trial of a sweep
answer                       of such a sweep: which function of `lab_answers` draws the conclusion
rows                         `settings`: a row for each, with its `figures`, with what is `counted`
                             of its network, and with figures `by_epoch`; or `epochs`
board_protocol               the machine too is held against the protocol of small boards
[columns]                    the table: a figure of a row, and its heading
[[plots]]                    what is drawn of the rows, or of the `curves` by epoch; `graph_of`
                             names a figure that has a graph of its own
[[missing]]                  what the experiment asks for and this version cannot do
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from stepscope.errors import StepscopeError
from stepscope.experiments.trial_order import grid
from stepscope.records.types import LabPlot, MissingPart, SettingValue

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SHEETS = resources.files(__package__).joinpath("sheets")


@dataclass(frozen=True)
class Setting:
    """One thing to try: the settings that make it, and words for the table."""

    values: Mapping[str, SettingValue]
    shown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sheet:
    """A lab as it is written down."""

    name: str
    about: str
    question: str
    published: str
    run: Mapping[str, SettingValue]
    settings: tuple[Setting, ...]
    columns: Mapping[str, str]
    epochs: int
    samples: int | None = None
    repeats: int = 1
    needs: Mapping[str, str] = field(default_factory=dict)
    each_counts: bool = False
    store: bool = False
    procedure: str = "sweep"
    answer: str = ""
    rows: Literal["settings", "epochs"] = "settings"
    figures: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    by_epoch: Mapping[str, str] = field(default_factory=dict)
    board_protocol: bool = False
    plots: tuple[LabPlot, ...] = ()
    missing: tuple[MissingPart, ...] = ()

    @property
    def has_curves(self) -> bool:
        """Whether a plot shows figures by epoch."""
        return any(plot.get("rows") == "curves" for plot in self.plots)


def read_sheet(name: str) -> Sheet:
    """Read the sheet of a lab.

    Raises:
        StepscopeError: the sheet is wrong, which is a fault of ours.
    """
    text = _SHEETS.joinpath(f"{name}.toml").read_text(encoding="utf-8")
    try:
        written = tomllib.loads(text)
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
    except (ValueError, TypeError) as error:
        raise StepscopeError(f"the sheet of lab {name} does not read: {error}") from error


def sheet_names() -> list[str]:
    """List the labs that have a sheet."""
    files = _SHEETS.iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
