"""A run starts only where the machine is as required, and a prepared one is put back."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_trees import (
    JETSON_AGX_XAVIER,
    JETSON_XAVIER_NX,
    VIRTUAL_MACHINE,
    add_nvpmodel,
    write_tree,
)

from stepscope.errors import Interrupted, MachineError, RequestError
from stepscope.hardware.conditions import CONDITIONS, read_conditions
from stepscope.hardware.machine_setup import kept_file
from stepscope.supervisor.required_conditions import (
    check_requirements,
    parse_requirements,
    prepared,
    wanted_conditions,
)

VALUES = st.text("abcXYZ0189_-.", min_size=1, max_size=12)


pytestmark = pytest.mark.usefixtures("own_state")


@given(st.dictionaries(st.sampled_from(sorted(CONDITIONS)), VALUES, min_size=1))
def test_conditions_are_read_as_they_are_written(wanted: dict[str, str]) -> None:
    text = " , ".join(f"{name.replace('_', '-')} = {value}" for name, value in wanted.items())
    assert parse_requirements(text) == wanted


@given(st.text(max_size=40))
def test_any_text_is_conditions_or_a_wrong_request(text: str) -> None:
    with contextlib.suppress(RequestError):
        assert parse_requirements(text).keys() <= CONDITIONS.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("govenor=performance", "Did you mean 'governor'"),
        ("governor", "wanted NAME=VALUE"),
        ("governor=", "wanted NAME=VALUE"),
        ("fan=max,fan=0", "twice"),
        (" , ", "wanted NAME=VALUE"),
    ],
)
def test_a_requirement_that_cannot_be_read_says_what_was_wanted(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        parse_requirements(text)


@pytest.mark.parametrize("mode", ["MODE_15W", "mode_15w", "2", None])
def test_a_power_mode_is_met_by_its_name_or_number(tmp_path: Path, mode: str | None) -> None:
    root = write_tree(JETSON_AGX_XAVIER, tmp_path)
    check_requirements(mode and f"power_mode={mode},governor=Schedutil", root)


def test_what_is_not_met_is_named_all_of_it_with_what_to_do(tmp_path: Path) -> None:
    root = write_tree(JETSON_AGX_XAVIER, tmp_path)
    with pytest.raises(MachineError) as refused:
        check_requirements("power_mode=MAXN,governor=performance,swap=off", root)
    message = str(refused.value)
    assert "power_mode=MAXN, found MODE_15W (this machine has MAXN, MODE_10W" in message
    assert "governor=performance, found schedutil" in message
    assert "swap" not in message.partition(". As root")[0]
    assert "stepscope doctor --apply" in message


def test_what_this_machine_cannot_tell_is_not_met(tmp_path: Path) -> None:
    root = write_tree(VIRTUAL_MACHINE, tmp_path)
    with pytest.raises(MachineError, match=r"unknown on this machine: .*Leave out"):
        check_requirements("governor=performance", root)


def test_what_is_required_is_set_in_the_place_of_the_protocols(tmp_path: Path) -> None:
    root = write_tree(JETSON_XAVIER_NX, tmp_path)
    wanted = wanted_conditions("power_mode=MODE_10W_4CORE,clock_source=tsc", root)
    assert wanted["power_mode"] == "MODE_10W_4CORE"
    assert "clock_source" not in wanted  # nothing that can be set
    assert wanted["fan"] == "max"


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_prepared_machine_is_put_back_after_a_failure_or_a_signal(
    tmp_path: Path, number: signal.Signals | None
) -> None:
    root = write_tree(JETSON_XAVIER_NX, tmp_path)
    add_nvpmodel(root)
    before = signal.getsignal(number or signal.SIGINT)

    def be_stopped() -> None:
        with prepared(wanted_conditions(None, root), root) as changed:
            assert read_conditions(root)["power_mode"].value == "MODE_15W_6CORE"
            assert changed
            if number is None:
                raise ZeroDivisionError
            os.kill(os.getpid(), number)

    with pytest.raises(ZeroDivisionError if number is None else Interrupted):
        be_stopped()
    assert read_conditions(root)["power_mode"].value == "MODE_10W_2CORE"
    assert not kept_file(root).exists()
    assert signal.getsignal(number or signal.SIGINT) is before
