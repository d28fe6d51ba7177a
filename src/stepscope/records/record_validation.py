"""Check a record from a file against its type once, where it is read.

What a type lets be missing or unknown is left out if it does not fit, and named in a list. A
record in which a necessary value does not fit is refused. So readers may rely on the types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typing_extensions import NotRequired, Required, get_type_hints, is_typeddict

# Beyond anything that is counted or timed. Sums and squares of such numbers are still finite.
MOST = 1e24
_DEEPEST = 20  # levels of a value of any type
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}

# Returns the value as its type has it; appends the places that were left out.
Check = Callable[[Any, str, list[str]], Any]


class UnfitError(ValueError):
    """A value that is not of its type; the message says where, what was wanted and found."""

    def __init__(self, place: str, wanted: str, found: object) -> None:
        shown = repr(found) if isinstance(found, str | int | float | NoneType) else ""
        what = f"{shown[:40]}{'...' * (len(shown) > 40)}" or f"a {type(found).__name__}"
        super().__init__(f"{place}: wanted {wanted}, found {clean(what)}")


def validated(kind: Any, value: object) -> tuple[Any, list[str]]:
    """Return a value as its type has it, and what was left out of it.

    Raises:
        UnfitError: a value that the type does not let be missing or unknown does not fit.
    """
    left_out: list[str] = []
    return _check_of(kind)(value, "", left_out), left_out


def clean(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and no encoding can write."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@cache
def _check_of(kind: Any) -> Check:
    arguments = get_args(kind)
    if is_typeddict(kind):
        return _object(kind)
    origin = get_origin(kind)
    if origin is Annotated:
        return _check_of(kind.__metadata__[0])
    if origin in (NotRequired, Required):
        return _check_of(arguments[0])
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, UnionType):
        return _union(arguments)
    if origin is tuple:
        return _tuple([_check_of(each) for each in arguments])
    if origin in (list, Sequence):
        return _list(_check_of(arguments[0]))
    if origin in (dict, Mapping):
        return _mapping(arguments[0], _check_of(arguments[1]))
    return _anything if kind is Any else _plain(kind)


def _plain(kind: type) -> Check:
    def check(value: Any, place: str, _: list[str]) -> Any:
        if kind is str and isinstance(value, str):
            return clean(value)
        if kind in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
            if abs(value) <= MOST and (kind is float or value == int(value)):
                return value if kind is float else int(value)
        elif kind is type(value):
            return value
        raise UnfitError(place, _WORDS.get(kind, "null"), value)

    return check


def _one_of(words: tuple[Any, ...]) -> Check:
    def check(value: Any, place: str, _: list[str]) -> Any:
        if isinstance(value, str) and value in words:
            return value
        raise UnfitError(place, " or ".join(map(repr, words)), value)

    return check


def _union(kinds: tuple[Any, ...]) -> Check:
    members = [_check_of(each) for each in kinds if each is not NoneType]

    def check(value: Any, place: str, left_out: list[str]) -> Any:
        if value is None and NoneType in kinds:
            return None
        failures = []
        for member in members:
            try:
                return member(value, place, left_out)
            except UnfitError as error:
                failures.append(error)
        if NoneType not in kinds:
            raise failures[-1]
        left_out.append(str(failures[-1]))
        return None

    return check


def _tuple(members: Sequence[Check]) -> Check:
    def check(value: Any, place: str, left_out: list[str]) -> Any:
        if not isinstance(value, list) or len(value) != len(members):
            raise UnfitError(place, f"a list of {len(members)}", value)
        return [
            member(each, f"{place}[{at}]", left_out)
            for at, (member, each) in enumerate(zip(members, value, strict=True))
        ]

    return check


def _list(member: Check) -> Check:
    def check(value: Any, place: str, left_out: list[str]) -> Any:
        if not isinstance(value, list):
            raise UnfitError(place, "a list", value)
        return [member(each, f"{place}[{at}]", left_out) for at, each in enumerate(value)]

    return check


def _mapping(key: Any, member: Check) -> Check:
    def check(value: Any, place: str, left_out: list[str]) -> Any:
        if not isinstance(value, dict):
            raise UnfitError(place, "an object", value)
        found = {}
        for name, each in value.items():
            if key is int and not name.isdecimal():
                raise UnfitError(place, "whole numbers as names", name)
            found[clean(name)] = member(each, f"{place}.{name}", left_out)
        return found

    return check


def _object(kind: Any) -> Check:
    hints = get_type_hints(kind, include_extras=True)
    marks: dict[str, Any] = {name: get_origin(hint) for name, hint in hints.items()}
    optional = {name for name in kind.__optional_keys__ if marks[name] is not Required}
    needed = {name for name in hints.keys() - optional if marks[name] is not NotRequired}
    checks = {name: _check_of(hint) for name, hint in hints.items()}
    nullable = {name for name in needed if NoneType in get_args(hints[name])}

    def check(value: Any, place: str, left_out: list[str]) -> Any:
        if not isinstance(value, dict):
            raise UnfitError(place, "an object", value)
        found = {}
        for name, each in value.items():
            where = f"{place}.{name}" if place else name
            try:
                found[clean(name)] = checks.get(name, _anything)(each, where, left_out)
            except UnfitError as error:
                if name in needed:
                    raise
                left_out.append(str(error))
        for name in needed - found.keys():
            if name not in nullable:
                raise UnfitError(place or "the record", f"{name!r} in it", "nothing")
            found[name] = None
        return found

    return check


def _anything(value: Any, place: str, left_out: list[str], deep: int = 0) -> Any:
    """Check a value that has no type: JSON with finite numbers, and not endlessly deep."""
    if isinstance(value, list | dict) and deep == _DEEPEST:
        raise UnfitError(place, f"at most {_DEEPEST} levels", "more")
    if isinstance(value, list):
        return [
            _anything(each, f"{place}[{at}]", left_out, deep + 1) for at, each in enumerate(value)
        ]
    if isinstance(value, dict):
        return {
            clean(name): _anything(each, f"{place}.{name}", left_out, deep + 1)
            for name, each in value.items()
        }
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int | float) and not abs(value) <= MOST:
        raise UnfitError(place, "a number in range", value)
    return value
