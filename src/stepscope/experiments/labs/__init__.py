"""Experiments by name: each answers one question for this machine, with what it measured itself.

A lab is a module here with `DEFAULTS`, the settings that it begins with, and `investigate`. One
line in `LABS` makes it known; how its finding looks is in `report.labs`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from stepscope.errors import RequestError, nearest
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.supervise import Onlooker
from stepscope.spec import RunSpec


@dataclass(frozen=True)
class Tools:
    """What whoever asks brings along: somebody to show a run to, and what its numbers mean."""

    onlooker: Onlooker
    summarize: Summarize
    say: Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """The answer in a sentence, whether it is a good one, and all figures as plain values."""

    answer: str
    holds: bool = True
    figures: dict[str, Any] = field(default_factory=dict)


class Investigation(Protocol):
    """What a lab's module offers."""

    DEFAULTS: Mapping[str, Any]

    def investigate(self, spec: RunSpec, tools: Tools) -> Finding:
        """Make the runs and draw the finding from them."""


LABS = {
    "memory": "why a training takes the memory that it takes, when it goes, what saves some",
    "second-epoch": "workers that do not fit: forecast, ended under a limit, and nothing lost",
}


def find(name: str) -> Investigation:
    """Import the lab of a name.

    Raises:
        RequestError: there is none.
    """
    if name not in LABS:
        raise RequestError(f"unknown lab {name!r}.{nearest(name, LABS)}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(Investigation, module)
