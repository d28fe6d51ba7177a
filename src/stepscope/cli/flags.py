"""The flags of a spec, made from its fields: a setting is written down once, in `spec.settings`."""

from __future__ import annotations

from inspect import signature
from typing import Annotated, Any, TypedDict

from cyclopts import Parameter

from stepscope.spec import RunSpec

_METAVARS: dict[Any, str] = {int: "N", int | None: "N", float: "X"}


def _flag(name: str) -> Any:
    field = RunSpec.model_fields[name]
    default = field.default
    shown = "" if default is None or isinstance(default, bool) else f" [default: {default}]"
    about = Parameter(help=f"{field.description}{shown}", **_metavar(field.annotation))
    if field.annotation is bool:
        return Annotated[bool, about]
    if name in ("augment", "norm"):
        # `--no-augment` gives None, which these settings take as `none`.
        return Annotated[str | None, about, Parameter(negative_none="no-")]
    # Numbers stay text here too: the spec reads them, so that a wrong one gets the same answer on
    # the command line as in a file, and 64.5 is not taken for 64.
    return Annotated[str, about]


def _metavar(annotation: Any) -> dict[str, Any]:
    """Show what a flag takes; cyclopts 4, the last one for Python 3.10, cannot."""
    if "metavar" not in signature(Parameter).parameters:
        return {}
    return {"metavar": _METAVARS.get(annotation, "WORD")}


SpecFlags = TypedDict(  # type: ignore[misc]
    "SpecFlags", {name: _flag(name) for name in RunSpec.model_fields}, total=False
)
