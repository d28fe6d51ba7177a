"""Which words of a command line are ours, and which are the user script's.

In `stepscope max-batch [flags] -- SCRIPT [ARGS]` the script follows `--`; in `stepscope trace` it
is the first word that is not a flag.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.errors import RequestError
from stepscope.hardware.process import find_rank
from stepscope.supervisor.script_child import TraceRequest

MARK = "--"
_WITHOUT_VALUE = ("--json", "--help", "-h", "--version")


def keep_mark(arguments: list[str]) -> list[str]:
    """Double the first `--`: the parser removes one, and the command still sees the other."""
    if MARK not in arguments:
        return arguments
    at = arguments.index(MARK)
    return [*arguments[:at], MARK, *arguments[at:]]


def mark_script(arguments: list[str]) -> list[str]:
    """Insert `--` before the script of `trace`, so that none of its words is parsed as ours."""
    words = iter(range(1, len(arguments)))
    for at in words:
        word = arguments[at]
        if word == MARK or not word.startswith("-"):
            end = at
            break
        end = at + 1 if word in _WITHOUT_VALUE or "=" in word else next(words, at) + 1
        if word in ("-m", "--module") or word.startswith("--module="):
            break
    else:
        return arguments
    mark = [] if arguments[end : end + 1] == [MARK] else [MARK]
    return [*arguments[:end], *mark, *arguments[end:]]


def split_script(words: Sequence[str]) -> tuple[list[str], TraceRequest | None]:
    """Split a command's words at the `--` that `keep_mark` kept: ours, and the script's."""
    if MARK not in words:
        return list(words), None
    at = words.index(MARK)
    ours, theirs = list(words[:at]), list(words[at + 1 :])
    if theirs[:1] == ["-m"]:
        if len(theirs) < 2:
            raise RequestError("-m: wanted a module after it, found nothing.")
        return ours, TraceRequest(None, theirs[1], tuple(theirs[2:]))
    if not theirs:
        raise RequestError("--: wanted a script after it, found nothing. Give: -- SCRIPT [ARGS]")
    if theirs[0].startswith("-"):
        raise RequestError(
            f"--: wanted a script or -m MODULE after it, found {theirs[0]!r}. "
            "stepscope's own flags come before it."
        )
    return ours, TraceRequest(theirs[0], None, tuple(theirs[1:]))


def refuse_launcher(command: str) -> None:
    """Refuse a command that torchrun started in several processes, which would repeat the work."""
    rank = find_rank()
    if rank is not None:
        raise RequestError(
            f"{command}: wanted one process, which starts its trials itself; found "
            f"{rank.world_size}, started by torchrun. Call it without torchrun: "
            f"stepscope {command} ..."
        )
