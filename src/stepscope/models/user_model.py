"""Build a network from a user's code; an exception becomes an error that names their line."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from stepscope.errors import RequestError, nearest

# SystemExit too: a training script without a main guard parses our command line and exits.
_WHATEVER_THEY_RAISE = (Exception, SystemExit)


def build_user_model(module_name: str, factory_name: str, *, classes: int) -> nn.Module:
    """Import a module as `python -m` would, call its factory, and return the network."""
    wanted = f"model '{module_name}:{factory_name}'"
    module = _import(module_name, wanted)
    factory = _find(module, factory_name, wanted)
    arguments = _arguments(factory, classes, wanted)
    try:
        model = factory(**arguments)
    except _WHATEVER_THEY_RAISE as error:
        call = ", ".join(f"{key}={value}" for key, value in arguments.items())
        raise RequestError(
            f"cannot build {wanted}: {factory_name}({call}) raised "
            f"{_described(error, module_name)}. Correct it there, then try again."
        ) from error
    if not isinstance(model, nn.Module):
        raise RequestError(
            f"cannot build {wanted}: {factory_name} should return a torch.nn.Module, "
            f"but it returned {_typed(model)}. Return the network itself."
        )
    return model


def _import(module_name: str, wanted: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        # It stays: the user's code may import more of itself when it is called.
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except _WHATEVER_THEY_RAISE as error:
        # It may also be a missing module that the user's module imports.
        is_missing = (
            isinstance(error, ModuleNotFoundError)
            and f"{module_name}.".startswith(f"{error.name}.")
            and _line_in_user_code(error, module_name) is None
        )
        if is_missing:
            advice = (
                "Leave out '.py': a module is named, not a file"
                if module_name.endswith(".py")
                else "Check the spelling, or start stepscope in the folder that holds it"
            )
            raise RequestError(
                f"cannot find the module of {wanted}: {error}. Looked in {here} and among "
                f"the installed packages. {advice}."
            ) from error
        raise RequestError(
            f"cannot import the module of {wanted}: it raised {_described(error, module_name)}. "
            f"Make `python -c 'import {module_name}'` work in {here}, then try again."
        ) from error


def _find(module: ModuleType, factory_name: str, wanted: str) -> Callable[..., Any]:
    found: Any = module
    for part in factory_name.split("."):
        owner = found
        try:
            found = getattr(owner, part)
        except AttributeError as error:
            where = f"module '{module.__name__}'" if owner is module else _typed(owner)
            choices = [
                name
                for name, value in getattr(owner, "__dict__", {}).items()
                if not name.startswith("_") and callable(value)
            ]
            file = getattr(module, "__file__", None) or "no file"
            advice = nearest(part, choices) if choices else " It defines no function or class."
            raise RequestError(
                f"cannot find the factory of {wanted}: {where} ({file}) has no {part!r}.{advice}"
            ) from error
        except _WHATEVER_THEY_RAISE as error:
            # A module may import its parts lazily.
            raise RequestError(
                f"cannot find the factory of {wanted}: looking up {part!r} raised "
                f"{_described(error, module.__name__)}. Correct it there, then try again."
            ) from error
    if isinstance(found, nn.Module):
        raise RequestError(
            f"cannot call the factory of {wanted}: {factory_name} is already a network "
            f"({_typed(found)}). Name a function that makes a new one, or the class."
        )
    if not callable(found):
        raise RequestError(
            f"cannot call the factory of {wanted}: {factory_name} is {_typed(found)}, not a "
            "function or class. Name one that returns a torch.nn.Module."
        )
    factory: Callable[..., Any] = found
    return factory


def _arguments(factory: Callable[..., Any], classes: int, wanted: str) -> dict[str, int]:
    """Return the arguments for the factory; `**kwargs` counts as taking `num_classes`."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return {}  # some callables written in C have no signature
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [name for name in ("num_classes", "classes") if kinds.get(name) in by_keyword]
    if not names and inspect.Parameter.VAR_KEYWORD in kinds.values():
        names = ["num_classes"]
    arguments = dict.fromkeys(names[:1], classes)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise RequestError(
            f"cannot call the factory of {wanted}: its signature is {signature}, and stepscope "
            f"passes only num_classes= or classes= ({error}). Give the other arguments "
            "defaults, or name a function that fills them in."
        ) from error
    return arguments


def describe_user_error(error: BaseException, name: str) -> str | None:
    """Return the error in the code of `package.module:factory`; None if it was elsewhere."""
    package = name.partition(":")[0].partition(".")[0]
    frames = traceback.walk_tb(error.__traceback__)
    theirs = (str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames)
    return _described(error, package) if package in theirs else None


def _described(error: BaseException, module_name: str) -> str:
    """Return the exception's type, its message, and the line in the user's code."""
    # The text of a syntax error repeats the file and line.
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = _line_in_user_code(error, module_name)
    return f"{text} (at {place})" if place else text


def _line_in_user_code(error: BaseException, module_name: str) -> str | None:
    """Return `file:line` of the innermost frame in the user's code, or None."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).exists():
        return f"{error.filename}:{error.lineno}"
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        frame_module = str(frame.f_globals.get("__name__"))
        same_package = frame_module.partition(".")[0] == module_name.partition(".")[0]
        if same_package or not (file == __file__ or _is_installed(file)):
            place = f"{file}:{line}"
    return place


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to a library."""
    return file.startswith(("<", sysconfig.get_path("stdlib") + os.sep)) or not {
        "site-packages",
        "dist-packages",
    }.isdisjoint(Path(file).parts)


def _typed(value: object) -> str:
    """Return `a Net`, `an int` or `the class Net`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
