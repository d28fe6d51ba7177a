"""The list of labs on a terminal."""

from io import StringIO

from rich.console import Console

from stepscope.report.terminal.lab_tables import print_labs


def test_labs_are_listed_one_a_line():
    file = StringIO()
    print_labs(Console(file=file, width=20), {"a": "one thing", "longer": "another [red] thing"})
    assert file.getvalue() == "a       one thing\nlonger  another [red] thing\n"
