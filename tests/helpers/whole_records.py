"""Complete what a test writes of a record with the values that its type wants besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typing_extensions import NotRequired, Required, get_type_hints, is_typeddict

from stepscope.records.run_reader import events_by_name
from stepscope.records.types import Environment, Instrument, Summary

_EMPTY = {str: "", int: 0, float: 0.0, bool: False, NoneType: None}


def whole_run(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run with all that its summary needs."""
    parts = {"summary": Summary, "environment": Environment, "instrument": Instrument}
    return {
        name: whole(parts[name], value) if name in parts else value for name, value in info.items()
    }


def whole_event(event: Mapping[str, Any]) -> Any:
    """Return an event with all that its kind has."""
    return whole(events_by_name().get(event.get("event"), Any), event)


def whole(kind: Any, value: Any) -> Any:
    """Return a value with all that its type wants; what is there stays as it is."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return whole(kind.__metadata__[0], value)
    if origin in (NotRequired, Required):
        return whole(arguments[0], value)
    if origin in (Union, UnionType):
        kinds = [each for each in arguments if each is not NoneType]
        return whole(kinds[0], value) if len(kinds) == 1 and value is not None else value
    if is_typeddict(kind) and isinstance(value, dict):
        hints = get_type_hints(kind, include_extras=True)
        needed = {
            name
            for name, hint in hints.items()
            if get_origin(hint) is Required
            or (name in kind.__required_keys__ and get_origin(hint) is not NotRequired)
        }
        known = {name: whole(hints.get(name, Any), each) for name, each in value.items()}
        return {**{name: _empty(hints[name]) for name in needed}, **known}
    if origin in (list, Sequence) and isinstance(value, list | tuple):
        return [whole(arguments[0], each) for each in value]
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {name: whole(arguments[1], each) for name, each in value.items()}
    return value


def _empty(kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if NoneType in arguments:
        return None
    if origin is Annotated:
        return _empty(kind.__metadata__[0])
    if origin in (NotRequired, Required):
        return _empty(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin in (list, Sequence):
        return []
    return _EMPTY[kind] if kind in _EMPTY else whole(kind, {})
