"""Which words of `stepscope fit [flags] -- SCRIPT [ARGS]` are somebody's script: all after `--`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.errors import RequestError
from stepscope.supervisor.rank_processes import find_rank

MARK = "--"


@dataclass(frozen=True)
class ScriptCommand:
    """How somebody calls a script: a file, or a module as `python -m` does, and its arguments."""

    script: str | None
    module: str | None
    arguments: tuple[str, ...]


def keep_mark(arguments: list[str]) -> list[str]:
    """Double the first `--`: the parser takes one away, and the command still sees the other."""
    if MARK not in arguments:
        return arguments
    at = arguments.index(MARK)
    return [*arguments[:at], MARK, *arguments[at:]]


def split_script(words: Sequence[str]) -> tuple[list[str], ScriptCommand | None]:
    """Divide a command's words at the `--` that `keep_mark` kept: ours, and the script's.

    Raises:
        RequestError: nothing that could be run comes after it.
    """
    if MARK not in words:
        return list(words), None
    at = words.index(MARK)
    ours, theirs = list(words[:at]), list(words[at + 1 :])
    if theirs[:1] == ["-m"]:
        if len(theirs) < 2:
            raise RequestError("-m: wanted a module after it, found nothing.")
        return ours, ScriptCommand(None, theirs[1], tuple(theirs[2:]))
    if not theirs:
        raise RequestError("--: wanted a script after it, found nothing. Give: -- SCRIPT [ARGS]")
    if theirs[0].startswith("-"):
        raise RequestError(
            f"--: wanted a script or -m MODULE after it, found {theirs[0]!r}. "
            "stepscope's own flags come before it."
        )
    return ours, ScriptCommand(theirs[0], None, tuple(theirs[1:]))


# --- Which words of `stepscope trace …` are ours, and where the script's own begin


_WITHOUT_VALUE = ("--json", "--help", "-h", "--version")


def mark_script(arguments: list[str]) -> list[str]:
    """Put `--` in front of what is the script's own, so that none of it is taken for ours."""
    words = iter(range(1, len(arguments)))
    for at in words:
        word = arguments[at]
        if word == "--" or not word.startswith("-"):
            end = at
            break
        end = at + 1 if word in _WITHOUT_VALUE or "=" in word else next(words, at) + 1
        if word in ("-m", "--module") or word.startswith("--module="):
            break
    else:
        return arguments
    return [
        *arguments[:end],
        *([] if arguments[end : end + 1] == ["--"] else ["--"]),
        *arguments[end:],
    ]


# --- Commands that start processes of their own are not for a launcher of several processes


def refuse_launcher(command: str) -> None:
    """Refuse a command that torchrun has started several times: each would do all of the work.

    Raises:
        RequestError: it has.
    """
    place = find_rank()
    if place is not None:
        raise RequestError(
            f"{command}: wanted one process, which starts its trials itself; found {place.world}, "
            f"started by torchrun. Call it without torchrun: stepscope {command} ..."
        )
