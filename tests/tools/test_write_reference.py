"""The generated pages of docs/reference: up to date, and complete."""

from __future__ import annotations

import write_reference as tool
from cyclopts import App

from stepscope.cli.main import make_app

OUT_OF_DATE = "out of date: run .venv/bin/python tools/write_reference.py"


def test_the_page_of_commands_is_up_to_date() -> None:
    page = tool.REFERENCE / "commands.md"
    assert page.read_text(encoding="utf-8") == tool.commands_page(make_app()), OUT_OF_DATE


def test_the_tables_of_settings_are_up_to_date() -> None:
    page = (tool.REFERENCE / "settings.md").read_text(encoding="utf-8")
    assert page == tool.settings_page(page), OUT_OF_DATE


def test_a_command_shows_its_options_with_defaults_and_its_aliases() -> None:
    app = App(name="stepscope", help_format="plaintext")

    @app.command
    def weigh(model: str, /, *, repeats: int = 3, chart: str | None = None) -> None:
        """Weigh a model.

        Exits with 1 where --repeats are too few.

        Parameters
        ----------
        model
            A network.
        repeats
            How many rounds.
        chart
            A file for it [default: none is written].
        """

    page = tool.commands_page(app)
    assert "## `stepscope weigh`" in page
    assert "`stepscope weigh [OPTIONS] MODEL`" in page
    assert "Exits with 1 where `--repeats` are too few." in page
    assert "| `MODEL` | A network |" in page
    assert "| `--repeats` | `3` | How many rounds |" in page
    assert "| `--chart` | none is written | A file for it |" in page


def test_text_written_by_hand_around_the_tables_stays() -> None:
    page = tool.settings_page(f"before\n{tool.BEGIN}\nstale tables\n{tool.END}\nafter\n")
    assert page.startswith(f"before\n{tool.BEGIN}\n")
    assert page.endswith(f"{tool.END}\nafter\n")
    assert "stale tables" not in page
