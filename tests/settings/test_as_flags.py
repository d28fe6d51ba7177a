"""Settings as flags: what a shell makes of them is what they were."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from stepscope.settings.load_settings import as_flags


def test_a_switch_is_one_word_and_a_list_has_commas() -> None:
    settings = {"batch_size": 64, "evaluate": False, "pin_memory": True, "input": [3, 64, 48]}
    assert as_flags(settings) == "--batch-size 64 --no-evaluate --pin-memory --input 3,64,48"


@given(st.text())
def test_a_shell_reads_every_text_as_it_was(text: str) -> None:
    assert shlex.split(as_flags({"data_dir": text})) == ["--data-dir", text]
