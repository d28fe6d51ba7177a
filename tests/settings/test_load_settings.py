"""From a file and flags to a spec, and from settings to flags."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import RequestError
from stepscope.settings.load_settings import as_flags, read_settings, resolve_request, validate


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_asked_gives_the_defaults():
    assert resolve_request(None, {}) == validate({})


def test_a_toml_file_has_the_settings_by_name(tmp_path):
    file = write(
        tmp_path / "lab.toml",
        'model = "resnet18"\nbatch_size = 128\nlr = 0.1\naugment = false\nmemory_limit = "2GB"\n',
    )
    asked = {"model": "resnet18", "batch_size": 128, "lr": 0.1, "augment": "none"}
    assert resolve_request(file, {}) == validate({**asked, "memory_limit": 2 * 10**9})


def test_a_flag_wins_over_the_file_and_the_rest_of_the_file_stays(tmp_path):
    file = write(tmp_path / "lab.toml", "epochs = 0\nbatch_size = 128\n")  # 0 is wrong
    spec = resolve_request(file, {"epochs": "2"})
    assert (spec.epochs, spec.batch_size) == (2, 128)


@pytest.mark.parametrize(
    ("line", "flags", "optimizer"),
    [
        ('optimizer = "nesterov"', {"optimizer": "adam"}, ("adam", False)),
        ("nesterov = true", {"optimizer": "adam"}, ("adam", False)),
        ("nesterov = true", {"lr": "0.1"}, ("sgd", True)),
    ],
)
def test_another_optimizer_as_a_flag_drops_the_file_s_nesterov(tmp_path, line, flags, optimizer):
    spec = resolve_request(write(tmp_path / "lab.toml", line), flags)
    assert (spec.optimizer, spec.nesterov) == optimizer


def test_the_run_json_of_a_run_repeats_it(tmp_path):
    spec = validate({"model": "vgg11", "optimizer": "nesterov", "seed": 7, "memory_limit": "1GB"})
    info = {"schema": 1, "status": "failed", "spec": spec.model_dump(mode="json"), "summary": {}}
    file = write(tmp_path / "run.json", json.dumps(info))
    assert resolve_request(file, {}) == spec
    assert resolve_request(file, {"seed": "8"}) == spec.model_copy(update={"seed": 8})


NO_SPEC = ("", "{", "[]", '"spec"', "3", "null", "{}", '{"spec": null}', '{"spec": [1]}')


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        *[("run.json", text, "{file} has no `spec` that could be repeated") for text in NO_SPEC],
        ("lab.toml", "epochs = 3\nbatch size = 64\n", "{file} is not valid TOML: .*line 2"),
        ("lab.toml", "[training]\nepochs = 3\n", "{file}: unknown setting 'training'"),
        ("lab.toml", b'name = "Pr\xfcfung"', "cannot read {file}: "),
        ("lab.toml", None, "no such file: {file}"),
        (".", None, "cannot read {file}: "),
        ("/dev/zero", None, "cannot read {file}: it is larger than 16 MiB"),
        (
            "lab.toml",
            "batchsize = 64\nepochs = 0\n",
            "{file}: unknown setting 'batchsize'. Did you mean 'batch_size'.; "
            "epochs: wanted greater than or equal to 1, found 0$",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path, name, text, complaint):
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RequestError, match=complaint.format(file=file)):
        resolve_request(file, {})


def test_a_switch_is_one_word_and_a_list_has_commas():
    settings = {"batch_size": 64, "evaluate": False, "pin_memory": True, "input": [3, 64, 48]}
    assert as_flags(settings) == "--batch-size 64 --no-evaluate --pin-memory --input 3,64,48"


@given(st.text())
def test_a_shell_reads_every_text_as_it_was(text):
    assert shlex.split(as_flags({"data_dir": text})) == ["--data-dir", text]


@pytest.mark.parametrize(
    "text", ["a" + ".a" * 200_000 + " = 1", "x = " + "[" * 10**5, "x = " + "{x=" * 10**5]
)
def test_a_deeply_nested_file_is_refused_at_once(tmp_path, text):
    (tmp_path / "nested.toml").write_text(text)
    with pytest.raises(RequestError, match="nested too deeply"):
        read_settings(tmp_path / "nested.toml")
