"""The flags of a spec, made from its fields: a setting is written down once, in `spec.settings`."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from cyclopts import Parameter
from pydantic import BeforeValidator

from stepscope.spec import RunSpec

_NUMBERS: dict[Any, type] = {int: int, float: float, bool: bool, int | None: int}


def _flag(name: str) -> Any:
    field = RunSpec.model_fields[name]
    default = field.default
    shown = "" if default is None or isinstance(default, bool) else f" [default: {default}]"
    about = Parameter(help=f"{field.description}{shown}")
    if name in ("augment", "norm"):
        # `--no-augment` gives None, which these settings take as `none`.
        return Annotated[str | None, about, Parameter(negative_none="no-")]
    # A setting that is read from a word (a choice, a size) stays text here: the spec reads it, and
    # a wrong word gets the same answer on the command line as in a file.
    read_from_word = any(isinstance(step, BeforeValidator) for step in field.metadata)
    return Annotated[str if read_from_word else _NUMBERS.get(field.annotation, str), about]


SpecFlags = TypedDict(  # type: ignore[misc]
    "SpecFlags", {name: _flag(name) for name in RunSpec.model_fields}, total=False
)
