"""From a file and flags to a spec, and from settings to flags."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import RequestError
from stepscope.settings.load_settings import as_flags, resolve_request, validate


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
    file = write(tmp_path / "lab.toml", "epochs = 9\nbatch_size = 128\n")
    spec = resolve_request(file, {"epochs": "2"})
    assert (spec.epochs, spec.batch_size) == (2, 128)


def test_a_wrong_value_in_the_file_does_not_matter_where_a_flag_wins(tmp_path):
    file = write(tmp_path / "lab.toml", "epochs = 0\n")
    assert resolve_request(file, {"epochs": "2"}).epochs == 2


@pytest.mark.parametrize("line", ['optimizer = "nesterov"', "nesterov = true"])
def test_another_optimizer_as_a_flag_puts_the_file_s_nesterov_away(tmp_path, line):
    spec = resolve_request(write(tmp_path / "lab.toml", line), {"optimizer": "adam"})
    assert (spec.optimizer, spec.nesterov) == ("adam", False)


def test_the_file_s_nesterov_stays_when_no_flag_speaks_of_the_optimizer(tmp_path):
    spec = resolve_request(write(tmp_path / "lab.toml", "nesterov = true"), {"lr": "0.1"})
    assert (spec.optimizer, spec.nesterov) == ("sgd", True)


def test_the_run_json_of_a_run_repeats_it(tmp_path):
    spec = validate({"model": "vgg11", "optimizer": "nesterov", "seed": 7, "memory_limit": "1GB"})
    info = {"schema": 1, "status": "failed", "spec": spec.model_dump(mode="json"), "summary": {}}
    file = write(tmp_path / "run.json", json.dumps(info))
    assert resolve_request(file, {}) == spec
    assert resolve_request(file, {"seed": "8"}) == spec.model_copy(update={"seed": 8})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"spec"', "3", "null", "{}", '{"spec": null}', '{"spec": [1]}']
)
def test_json_without_a_spec_is_refused_by_name(tmp_path, text):
    file = write(tmp_path / "run.json", text)
    with pytest.raises(RequestError) as caught:
        resolve_request(file, {})
    assert str(file) in str(caught.value)
    assert "run folder" in str(caught.value)


def test_invalid_toml_is_refused_with_its_place_and_an_example(tmp_path):
    file = write(tmp_path / "lab.toml", "epochs = 3\nbatch size = 64\n")
    with pytest.raises(RequestError) as caught:
        resolve_request(file, {})
    assert f"{file} is not valid TOML" in str(caught.value)
    assert "line 2" in str(caught.value)
    assert "batch_size = 64" in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path):
    file = tmp_path / "nowhere.toml"
    with pytest.raises(RequestError, match="no such file") as caught:
        resolve_request(file, {})
    assert str(file) in str(caught.value)


def test_a_folder_in_place_of_a_file_is_refused_by_name(tmp_path):
    with pytest.raises(RequestError, match="cannot read") as caught:
        resolve_request(tmp_path, {})
    assert str(tmp_path) in str(caught.value)


def test_a_file_without_an_end_is_refused_by_name():
    with pytest.raises(RequestError, match=r"cannot read /dev/zero: it has more than 16 MiB"):
        resolve_request(Path("/dev/zero"), {})


def test_a_file_that_is_not_utf_8_is_refused_by_name(tmp_path):
    file = tmp_path / "lab.toml"
    file.write_bytes('name = "Prüfung"'.encode("latin-1"))
    with pytest.raises(RequestError, match="cannot read") as caught:
        resolve_request(file, {})
    assert str(file) in str(caught.value)


def test_a_wrong_setting_in_a_file_names_the_file_and_the_setting(tmp_path):
    file = write(tmp_path / "lab.toml", "batchsize = 64\nepochs = 0\n")
    with pytest.raises(RequestError) as caught:
        resolve_request(file, {})
    assert str(caught.value) == (
        f"{file}: unknown setting 'batchsize'. Did you mean 'batch_size'?; "
        "epochs: wanted greater than or equal to 1, found 0"
    )


def test_a_toml_table_is_an_unknown_setting_and_not_ignored(tmp_path):
    file = write(tmp_path / "lab.toml", "[training]\nepochs = 3\n")
    with pytest.raises(RequestError, match="unknown setting 'training'"):
        resolve_request(file, {})


def test_a_switch_is_one_word_and_a_list_has_commas():
    settings = {"batch_size": 64, "evaluate": False, "pin_memory": True, "input": [3, 64, 48]}
    assert as_flags(settings) == "--batch-size 64 --no-evaluate --pin-memory --input 3,64,48"


@given(st.text())
def test_a_shell_reads_every_text_as_it_was(text):
    assert shlex.split(as_flags({"data_dir": text})) == ["--data-dir", text]
