"""The style that all terminal tables share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class FigureList:
    """A table of figures, for the terminal or a page; the first column names the row.

    Columns are of figures, except those in `left`, which are words; those in `code` are code.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    left: Collection[int] = ()
    code: Collection[int] = ()


def print_rows(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    name_width: int | None = None,
) -> None:
    """Print rows below a ruled header, words to the left, figures to the right.

    The table has its full width: a long line is better than half a number. An empty row is a rule.
    A name longer than `name_width` continues below.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number in left else "right", no_wrap=True)
    if name_width is not None:
        names = table.columns[0]
        names.max_width, names.no_wrap, names.overflow = name_width, False, "fold"
    for row in rows:
        if row:
            table.add_row(*(Text(printable(cell)) for cell in row))
        else:
            table.add_section()
    table.width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.print(table, crop=False)


def print_figures(console: Console, figures: FigureList) -> None:
    """Print a table of figures without its title."""
    print_rows(console, figures.columns, figures.rows, left=(0, *figures.left))


def say(console: Console, *lines: str, style: str = "") -> None:
    """Print lines without wrapping: a wrapped path or command cannot be copied."""
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def print_prose(console: Console, text: str, *, style: str = "") -> None:
    """Print sentences in lines of at most 80 columns, without breaking paths and flags."""
    width = min(80, console.width)
    say(console, fill(text, width, break_long_words=False, break_on_hyphens=False), style=style)


def printable(text: str) -> str:
    """Escape control characters, which any recorded name may contain."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
