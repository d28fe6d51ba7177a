"""The page that every run and sweep leaves behind, whatever else happened."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stepscope.errors import StepscopeError


def leave_report(folder: Path, console: Console) -> None:
    """Write the page of a run or sweep and print its path; where that fails, one line says why.

    A training that has ended is not to end otherwise because of its page: nothing is raised.
    """
    try:
        from stepscope.report.page_file import write_page_of

        page = write_page_of(folder)
    except StepscopeError as error:
        print(f"stepscope: no report: {error}", file=sys.stderr)
    except Exception as error:
        fault = f"a fault of stepscope: {type(error).__name__}: {error}"
        print(f"stepscope: no report: {fault}", file=sys.stderr)
    else:
        console.print(Text(f"report: {_as_typed(page)}"), soft_wrap=True)


def _as_typed(path: Path) -> str:
    """Print a path the short way, as a person in this folder would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
