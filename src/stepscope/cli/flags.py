"""The flags of a spec, made from its fields: a setting is written down once, in `spec.settings`."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from cyclopts import Parameter

from stepscope.spec import RunSpec

_METAVARS = {
    **dict.fromkeys(("data_dir", "out"), "DIR"),
    **dict.fromkeys(("lr", "momentum", "weight_decay"), "X"),
    **dict.fromkeys(("samples", "batch_size", "accumulate", "epochs", "max_steps"), "N"),
    **dict.fromkeys(("threads", "workers", "prefetch", "seed"), "N"),
    "memory_limit": "SIZE",
    "endpoint_url": "URL",
}


def _flag(name: str) -> Any:
    field = RunSpec.model_fields[name]
    default = field.default
    shown = "" if default is None or isinstance(default, bool) else f" [default: {default}]"
    about = Parameter(help=f"{field.description}{shown}", metavar=_METAVARS.get(name, "NAME"))
    if field.annotation is bool:
        return Annotated[bool, about]
    # Text, whatever the setting's type: the spec reads it, so errors look the same everywhere.
    # `--no-NAME` gives None, which a setting that can be switched off takes as `none`.
    switched_off = Parameter(negative_none="no-") if name in ("augment", "norm") else Parameter()
    return Annotated[str | None if switched_off.negative_none else str, about, switched_off]


SpecFlags = TypedDict(  # type: ignore[misc]
    "SpecFlags", {name: _flag(name) for name in RunSpec.model_fields}, total=False
)
