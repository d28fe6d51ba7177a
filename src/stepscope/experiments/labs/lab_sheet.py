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
[columns]                    the table: a figure of a row, and its heading
[[plots]]                    what is drawn of the rows, or of the `curves` by epoch; `graph_of`
                             names a figure that has a graph of its own
[[missing]]                  what the experiment asks for and this version cannot do
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from stepscope.errors import StepscopeError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Setting:
    """One thing to try: the settings that make it, and words for the table."""

    values: Mapping[str, Any]
    shown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sheet:
    """A lab as it is written down."""

    name: str
    about: str
    question: str
    published: str
    run: Mapping[str, Any]
    settings: tuple[Setting, ...]
    columns: Mapping[str, str]
    epochs: int
    samples: int | None = None
    repeats: int = 1
    needs: Mapping[str, str] = field(default_factory=dict)
    each_counts: bool = False
    store: bool = False
    plots: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[Mapping[str, str], ...] = ()


def read_sheet(name: str) -> Sheet:
    """Read the sheet of a lab.

    Raises:
        StepscopeError: the sheet is wrong, which is a fault of ours.
    """
    text = _sheets().joinpath(f"{name}.toml").read_text(encoding="utf-8")
    try:
        written = tomllib.loads(text)
        settings = _combinations(written.pop("over", {}), written.pop("settings", []))
        for many in ("plots", "missing"):
            written[many] = tuple(written.get(many, ()))
        return Sheet(name=name, settings=settings, **written)
    except (ValueError, TypeError) as error:
        raise StepscopeError(f"the sheet of lab {name} does not read: {error}") from error


def sheet_names() -> list[str]:
    """List the labs that have a sheet."""
    files = _sheets().iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _combinations(
    over: Mapping[str, list[Any]], listed: list[dict[str, Any]]
) -> tuple[Setting, ...]:
    """Put every combination of values with each of the settings that are listed, if any are."""
    return tuple(
        Setting({**dict(zip(over, values, strict=True)), **each.values}, each.shown)
        for each in map(_setting, listed or [{"shown": {}}])
        for values in itertools.product(*over.values())
    )


def _setting(entry: dict[str, Any]) -> Setting:
    return Setting({key: value for key, value in entry.items() if key != "shown"}, entry["shown"])


def _sheets() -> Any:
    return resources.files(__package__).joinpath("sheets")
