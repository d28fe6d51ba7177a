"""`stepscope completion`: completion in bash, zsh and fish, and the values that are offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stepscope.records import schema

_HAS_COMPLETER = "completer" in signature(Parameter).parameters  # not in cyclopts 4


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print the completion script of a shell.

    bash: add `source <(stepscope completion bash)` to ~/.bashrc. zsh: write the script to a file
    `_stepscope` in a folder of $fpath. fish: write it to
    ~/.config/fish/completions/stepscope.fish.

    Parameters
    ----------
    shell
        The shell that reads the script.
    """
    from stepscope.cli.main import make_app

    print(make_app().generate_completion(prog_name="stepscope", shell=shell))
    return 0


def completed_with(values: Callable[[str], Iterable[str]]) -> Parameter:
    """Return a parameter that offers values for the word typed so far."""
    if not _HAS_COMPLETER:
        return Parameter()
    complete: dict[str, Any] = {
        "completer": lambda context: [
            value for value in values(context.incomplete) if value.startswith(context.incomplete)
        ]
    }
    return Parameter(**complete)


def _run_folders(word: str) -> list[str]:
    """List the folders of runs and sweeps beside a path typed so far; at first, of `runs`."""
    parent = Path(word if word.endswith("/") else Path(word).parent) if word else Path("runs")
    records = (schema.RUN, schema.SWEEP)
    return sorted(
        str(folder)
        for folder in (parent.iterdir() if parent.is_dir() else ())
        if any((folder / record).is_file() for record in records)
    )


RunPath = Annotated[Path, completed_with(_run_folders)]
RunText = Annotated[str, completed_with(_run_folders)]
