"""The house look of a table on the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table


def house_table(*columns: str) -> Table:
    """Make an empty table: names on the left, figures on the right, a line under the head."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table as wide as its figures: better a line that runs over than half a number."""
    table.width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.print(table, crop=False)


def printable(text: str) -> str:
    """Show what would steer the terminal instead of doing it: a script may be called anything."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
