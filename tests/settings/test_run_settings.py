"""What a setting may be, and what a spec says when it may not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import RequestError
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import resolve_request, validate
from stepscope.settings.run_settings import DEVICES, field_names


def complaint_about(settings: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        validate(settings)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_setting_explains_itself_in_one_line():
    for name, field in RunSpec.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description


def test_all_that_is_wrong_is_said_at_once():
    text = complaint_about(
        {"epoch": 3, "batchsize": 8, "lr": -1, "optimizer": "sdg", "workers": "many"}
    )
    for part in ("'epochs'", "'batch_size'", "lr: ", "optimizer: ", "workers: "):
        assert part in text
    assert len(text.split("; ")) == 5


# What is wrong, and the whole complaint or its beginning.
COMPLAINTS: list[tuple[dict[str, Any], str]] = [
    ({"batchsize": 1}, "unknown setting 'batchsize'. Did you mean 'batch_size'?"),
    ({"learning_mometum": 1}, "unknown setting 'learning_mometum'. Did you mean 'momentum'?"),
    ({"memory-limit": 1}, "unknown setting 'memory-limit'. Did you mean 'memory_limit'?"),
    ({"zzzz": 1}, f"unknown setting 'zzzz'. Known: {', '.join(sorted(field_names()))}."),
    ({"optimizer": "adamm"}, "optimizer: 'adamm' is not a choice. Did you mean 'adam'?"),
    ({"batch_size": 0}, "batch_size: wanted greater than or equal to 1, found 0"),
    ({"name": ""}, "name: wanted at least 1 character, found ''"),
    (
        {"nesterov": True, "optimizer": "adam", "persistent_workers": True},
        "nesterov: needs optimizer sgd with momentum above 0, found adam with momentum 0.9; "
        "persistent_workers: needs workers of 1 or more, found 0",
    ),
    ({"optimizer": "nesterov", "momentum": 0}, "nesterov: needs optimizer sgd with momentum above"),
    *[
        (
            {"page_cache": "cold", "source": source},
            f"page_cache: cold needs samples that are read from files, found source {source}. "
            "Use source local, or leave it out",
        )
        for source in ("memory", "synthetic")
    ],
    *[
        (
            {"source": source, "source_delay_ms": 0.5},
            "source_delay_ms: needs samples that are read while training",
        )
        for source in ("memory", "synthetic")
    ],
    ({"source": "synthetic", "workers": 2}, "workers: needs 0, found 2: synthetic batches are in"),
    ({"source": "synthetic", "pipeline_delay_ms": 1}, "pipeline_delay_ms: needs 0 with source"),
]


@pytest.mark.parametrize(("settings", "text"), COMPLAINTS, ids=lambda each: str(each)[:40])
def test_a_complaint_says_what_was_wanted_and_what_was_found(settings, text):
    assert complaint_about(settings).startswith(text)


# Settings as people write them, and what they mean for this or another setting.
MEANINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *[({"schedule": each}, {"schedule": "one-cycle"}) for each in ("One_Cycle", "onecycle")],
    ({"memory_format": "channels-last"}, {"memory_format": "channels_last"}),
    ({"memory_format": "ChannelsLast"}, {"memory_format": "channels_last"}),
    ({"optimizer": "RMS-prop"}, {"optimizer": "rmsprop"}),
    ({"precision": "BF16"}, {"precision": "bf16"}),
    *[
        ({"augment": off}, {"augment": "none"})
        for off in ("none", "None", "false", "off", "no", False, None)
    ],
    *[
        ({"augment": on}, {"augment": "crop-flip"})
        for on in ("CROP_FLIP", "true", "on", "yes", True)
    ],
    *[({"norm": none}, {"norm": "none"}) for none in ("None", None)],
    *[
        ({"optimizer": each}, {"optimizer": "sgd", "nesterov": True, "momentum": 0.9})
        for each in ("nesterov", "Nesterov")
    ],
    *[({"device": each}, {"device": each}) for each in (*DEVICES, "cuda:1")],
    ({"memory_limit": "3.9GiB"}, {"memory_limit": 4_187_593_113}),
    ({"memory_limit": 1024}, {"memory_limit": 1024}),
    ({"batch_size": "128", "lr": "1e-3"}, {"batch_size": 128, "lr": 0.001}),
    ({"pin_memory": "true"}, {"pin_memory": True}),
    *[
        ({"page_cache": cold}, {"source": "local", "page_cache": "cold-epochs"})
        for cold in ("cold-epochs", "COLD_EPOCHS")
    ],
    ({"page_cache": "keep"}, {"source": "memory"}),
    ({"source": "local", "source_delay_ms": "0.5"}, {"source_delay_ms": 0.5}),
    ({"data": "folder"}, {"source": "local"}),
    ({"data": "folder", "source": "memory"}, {"source": "memory"}),
    ({}, {"evaluate": True}),
    ({"source": "synthetic", "evaluate": True}, {"evaluate": False}),
    ({"name": "\0 ünï\n", "seed": 2**63 - 1}, {"name": "\0 ünï\n", "seed": 2**63 - 1}),
    ({"data": "folder", "input": "3,64,48"}, {"input": (3, 64, 48)}),
]


@pytest.mark.parametrize(("written", "meant"), MEANINGS, ids=lambda each: str(each)[:40])
def test_settings_are_read_as_people_write_them_and_repeated_from_run_json(written, meant):
    spec = validate(written)
    assert {name: getattr(spec, name) for name in meant} == meant
    recorded = json.dumps(spec.model_dump(mode="json"), allow_nan=False)
    assert validate(json.loads(recorded)) == spec


def test_a_spec_is_frozen():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        validate({}).lr = 1.0


OUT_OF_RANGE: dict[str, tuple[object, ...]] = {
    "batch_size": (0, -8, 1.5, "a lot"),
    **dict.fromkeys(("epochs", "accumulate", "max_steps", "samples"), (0,)),
    "threads": (0, 1025),
    "workers": (-1, 1025),
    "prefetch": (0, 1025),
    "lr": (0, "nan", "inf"),
    "momentum": (1, -0.1),
    "weight_decay": (-1e-9,),
    "memory_limit": (0, "-1GiB", "plenty", "9" * 5000),
    "drop_epochs": (-1,),
    "pipeline_delay_ms": (-0.1, 60_001),
    "source_delay_ms": ("inf",),
    "page_cache": ("frozen",),
    **dict.fromkeys(("evaluate", "pin_memory"), ("perhaps",)),
    "seed": (-1, 2**63),
    "model": ("", 3),
    **dict.fromkeys(("data", "out"), ("",)),
    "name": ("", "n" * 201),
    "device": ("tpu", "cuda:", "cuda:x", "cuda:-1"),
    "optimizer": (3, None),
}


@pytest.mark.parametrize(
    ("setting", "value"),
    [(setting, value) for setting, values in OUT_OF_RANGE.items() for value in values],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_setting(setting, value):
    assert complaint_about({setting: value}).startswith(f"{setting}: ")


def test_a_run_is_named_after_its_model_and_data_unless_it_has_a_name():
    assert validate({"model": "resnet18", "data": "cifar10"}).run_name == "resnet18-cifar10"
    assert validate({"name": "first try"}).run_name == "first try"


def test_a_file_may_use_pytorch_names(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("num_workers = 3\nlearning_rate = 0.2\n")
    spec = resolve_request(file, {})
    assert (spec.workers, spec.lr) == (3, 0.2)


# --- image folders --------------------------------------------------------------------------------


SIDES = st.integers(1, 8192)


@given(st.tuples(SIDES, SIDES, SIDES), st.sampled_from([",", "x", ", ", " x "]))
def test_a_shape_is_read_as_people_write_it(shape, between):
    assert validate({"input": between.join(map(str, shape))}).input == shape
    assert validate({"input": list(shape)}).input == shape


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "3", "3,64", "3,64,64,1", "3,0,64", "3,-1,64", "3,64.5,64", "a,b,c", "3,,64"),
        *("3,64,9999", "3,²,64", [3, 64], [3, 64.5, 64], [3, True, 64], 64, {"height": 64}),
    ],
    ids=str,
)
def test_what_is_no_shape_is_refused_with_an_example(wrong):
    with pytest.raises(RequestError, match=r"input: wanted .*, like 3,224,224; found"):
        validate({"input": wrong})


@given(st.text(max_size=20) | st.lists(st.integers() | st.text(max_size=3), max_size=4))
def test_nothing_that_is_given_as_a_shape_breaks_the_reader(given_shape):
    with contextlib.suppress(RequestError):
        assert validate({"input": given_shape}).input is not None
