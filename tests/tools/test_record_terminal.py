"""The recorded terminal: the script comes from the quickstart, and the picture fetches nothing."""

from __future__ import annotations

import ast

import record_terminal as tool


def test_the_script_is_the_one_of_the_quickstart() -> None:
    script = tool.script_of(tool.PAGE)
    assert script.startswith("# train.py\n")
    ast.parse(script)


def test_the_picture_shows_what_was_printed_and_fetches_no_font() -> None:
    picture = tool.draw("$ stepscope trace train.py\n\x1b[1mcompleted\x1b[0m")
    assert "completed" in picture
    assert "\x1b" not in picture
    assert "@font-face" not in picture
