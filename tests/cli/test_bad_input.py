"""Every wrong request, wrong data set, full disk: one clear message, the right code, no traceback.

Each case names what it asks for, the exit code, and what the message must say.
"""

from __future__ import annotations

import json
import resource

import pytest

from stepscope.records.run_reader import load_run

WRONG_REQUESTS = {
    "unknown model": (["--model", "resnet19"], "Did you mean 'resnet18'"),
    "unknown data": (["--data", "cifar11"], "Did you mean 'cifar10'"),
    "unknown flag": (["--bath-size", "8"], "--batch-size"),
    "no such file": (["nowhere.toml"], "no such file: nowhere.toml"),
    "batch size 0": (["--batch-size", "0"], "batch_size: wanted greater than or equal to 1"),
    "batch larger than data": (["--samples", "50", "--batch-size", "64"], "found 50"),
    "samples beyond the data": (["--samples", "60000"], "50,000"),
    "half a sample": (["--batch-size", "64.5"], "batch_size: wanted a valid integer"),
    "an endpoint without a store": (["--endpoint-url", "http://x"], "endpoint_url"),
    "epochs without end": (["--epochs", "1000000000"], "epochs: wanted"),
    "negative rate": (["--lr", "-1"], "lr: wanted greater than 0"),
    "rate that is no number": (["--lr", "fast"], "lr: wanted a valid number"),
    "unknown optimizer": (["--optimizer", "adm"], "Did you mean 'adam'"),
    "unknown device": (["--device", "gpu"], "device"),
    "unknown source": (["--source", "momory"], "Did you mean 'memory'"),
    "a store that is not read": (["--source", "ftp://bucket/x"], "ftp:// is not something"),
    "a store without a bucket": (["--source", "s3:///x"], "no bucket"),
    "a flag without value": (["--model"], "--model requires an argument"),
    "too many arguments": (["a.toml", "b.toml"], "b.toml"),
    "nonsense model": (["--model", "a:b:c"], "package.module:factory"),
}


@pytest.mark.parametrize("case", WRONG_REQUESTS)
def test_a_wrong_request_ends_with_2_and_one_message(stepscope, case):
    args, wanted = WRONG_REQUESTS[case]
    answer = stepscope("run", *args)
    assert answer.code == 2
    assert wanted in answer.err
    assert "Traceback" not in answer.err + answer.out
    assert answer.out.strip() == ""


def test_a_model_whose_module_does_not_exist_ends_with_2(stepscope, tiny):
    answer = stepscope("run", *tiny, "--model", "nowhere:net")
    assert answer.code == 2
    assert "nowhere" in answer.err


def test_a_wrong_request_makes_no_folder_when_it_can_be_known_before(stepscope):
    stepscope("run", "--model", "resnet19")
    assert not (stepscope.folder / "runs").exists()


def test_with_json_an_error_is_one_object_too(stepscope):
    answer = stepscope("run", "--batch-size", 0, "--json")
    assert answer.json["exit_code"] == answer.code == 2
    assert "batch_size" in answer.json["error"]


def test_an_unknown_command_suggests_the_nearest(stepscope):
    answer = stepscope("rnu")
    assert answer.code == 2
    assert 'Did you mean "run"' in answer.err


def test_an_output_folder_that_cannot_be_made_ends_with_2(stepscope, tiny):
    (stepscope.folder / "taken").write_text("a file")
    answer = stepscope("run", *tiny[:-1], "taken/below")
    assert answer.code == 2
    assert "cannot make a run folder" in answer.err
    assert "--out" in answer.err


def test_data_that_is_not_there_ends_with_3(stepscope):
    answer = stepscope("run", "--data", "cifar10", "--data-dir", "nothing")
    assert answer.code == 3
    assert "stepscope data get cifar10" in answer.err


def test_a_truncated_data_file_ends_with_3(stepscope, shared_data):
    folder = stepscope.folder / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for file in (shared_data / "cifar-10-batches-bin").glob("*.bin"):
        (folder / file.name).symlink_to(file)
    cut = folder / "data_batch_2.bin"
    content = cut.read_bytes()[:1000]
    cut.unlink()
    cut.write_bytes(content)
    answer = stepscope("run", "--data", "cifar10", "--data-dir", "data")
    assert answer.code == 3
    assert "data_batch_2.bin" in answer.err
    assert "30730000" in answer.err


def test_a_device_that_is_missing_ends_with_5_and_the_folder_says_why(stepscope, tiny):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    answer = stepscope("run", *tiny, "--device", "cuda", "--json")
    assert answer.code == 5
    assert answer.json["status"] == "failed"
    assert "CUDA" in answer.json["reason"]


def test_a_loss_that_turns_nan_ends_with_1_and_keeps_the_steps(stepscope, tiny):
    answer = stepscope("run", *tiny, "--lr", 1e9, "--json")
    assert answer.code == 1
    assert answer.json["status"] == "failed"
    assert "the loss became" in answer.json["reason"]
    run = load_run(stepscope.folder / answer.json["path"])
    assert len(run.steps) >= 1
    assert json.loads(answer.out)


def test_a_model_of_ones_own_that_does_not_fit_ends_with_2(stepscope, tiny):
    (stepscope.folder / "mine.py").write_text("def net():\n    raise ValueError('no weights')\n")
    answer = stepscope("run", *tiny, "--model", "mine:net")
    assert answer.code == 2
    assert "no weights" in answer.err
    assert "Traceback" not in answer.err


def test_a_model_of_ones_own_that_fails_only_in_training_ends_with_2(stepscope, tiny):
    (stepscope.folder / "late.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(3072, 10)\n"
        "    def forward(self, x):\n"
        "        if self.training:\n"
        "            raise KeyError('only when training')\n"
        "        return self.fc(x.flatten(1))\n"
        "def net():\n"
        "    return Net()\n"
    )
    answer = stepscope("run", *tiny, "--model", "late:net", "--json")
    assert answer.code == 2
    assert "only when training" in answer.json["reason"]
    assert "late.py:8" in answer.json["reason"], "the line is named"
    assert "Traceback" not in answer.err


def test_with_an_error_any_form_of_json_prints_json(stepscope):
    assert stepscope("run", "--batch-size", 0, "--json=true").json["exit_code"] == 2


def test_workers_that_shared_memory_cannot_hold_are_refused_before_they_start(stepscope):
    answer = stepscope("run", "--batch-size", 50000, "--workers", 1000, "--prefetch", 1000)
    assert answer.code == 5
    assert "/dev/shm" in answer.err


def limit_file_size(size_bytes: int):
    """Let no file grow beyond a size: the portable way to meet a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def test_a_disk_that_fills_up_ends_with_5_and_loses_nothing_written(stepscope):
    answer = stepscope.as_process(
        *("run", "--samples", 320, "--batch-size", 4, "--epochs", 1, "--out", "runs", "--json"),
        preexec_fn=limit_file_size(300_000),
        env={"PYTHONDONTWRITEBYTECODE": "1"},  # a compiled module would be cut off too
    )
    assert answer.code == 5, answer.err
    info = answer.json
    assert info["status"] == "failed"
    assert "cannot write" in info["reason"]
    run = load_run(stepscope.folder / info["path"])
    assert run.summary["steps"] == len(run.steps) > 0


def test_a_run_over_its_memory_limit_ends_with_4(stepscope, tiny):
    answer = stepscope("run", *tiny, "--epochs", 500, "--memory-limit", "80MiB", "--json")
    assert answer.code == 4
    assert answer.json["status"] == "out_of_memory"
    assert "80.0 MiB" in answer.json["reason"]
