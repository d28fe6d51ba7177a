"""Wrong requests, wrong data, a full disk: one clear message, the right code, no traceback."""

from __future__ import annotations

import json
import resource
import shlex

import pytest

from stepscope.records.run_reader import load_run

# By command, what is asked for and what the message must say: words, with ... between them.
WRONG_REQUESTS = {
    "run": {
        "--model resnet19": "Did you mean 'resnet18'",
        "--data cifar11": "Did you mean 'cifar10'",
        "--bath-size 8": "--batch-size",
        "nowhere.toml": "no such file: nowhere.toml",
        "--batch-size 0": "batch_size: wanted greater than or equal to 1",
        "--samples 50 --batch-size 64": "found 50",
        "--samples 60000": "50,000",
        "--batch-size 64.5": "batch_size: wanted a valid integer",
        "--endpoint-url http://x": "endpoint_url",
        "--epochs 1000000000": "epochs: wanted",
        "--lr=-1": "lr: wanted greater than 0",
        "--lr fast": "lr: wanted a valid number",
        "--optimizer adm": "Did you mean 'adam'",
        "--device gpu": "device",
        "--source momory": "Did you mean 'memory'",
        "--source ftp://bucket/x": "found ftp://",
        "--source s3:///x": "no bucket",
        "--model": "--model requires an argument",
        "a.toml b.toml": "b.toml",
        "--model a:b:c": "package.module:factory",
    },
    "sweep": {
        "": "at least one axis",
        "--over worker=0,1": "Did you mean 'workers'?",
        "--over workers=0,many": "workers: wanted a valid integer",
        "--over workers=-1": "workers: wanted greater than or equal to 0",
        "--over workers=0,1 --repeats 0": "repeats: wanted 1 or more",
        "--over workers=0,1 --repeats two": "repeats: wanted a whole number",
        "--over workers=0,1 --mode test": "wanted train or load",
        "--over workers=0,1 --time-limit -5": "seconds above 0",
        "--over model=lenet,lenett": "lenett",
        "--over batch_size=16,100000000": "batch_size",
        "--resume nowhere": "not a sweep folder",
        "--resume runs/x --over workers=0,1": "takes no other flag",
        "--over workers=0 -- nowhere.py": "no such script",
        "--model lenet --over workers=0 -- train.py": "a script was given",
        "--over workers=0 --": "wanted a script after it",
        "--over workers=0,1 --on rey": "Did you mean 'ray'?",
        "--over workers=0,1 --on 'the moon'": "wanted here or ray",
        "--over workers=0,1 --address 127.0.0.1:6379": "address: needs --on ray",
        "--over workers=0,1 --on here --mix-nodes": "mix_nodes: needs --on ray",
        "--over workers=0,1 --on ray --address nowhere": "wanted HOST:PORT",
        "--over workers=0,1 --on ray --address ray://127.0.0.1:10001": "wanted HOST:PORT",
    },
    "resume": {"nowhere": "not a run folder", "train.py": "not a run folder"},
    "workers": {
        "--model lenett": "lenett",
        "-- nowhere.py": "no such script",
        "--batch-size 8 -- train.py": "a script was given",
    },
    "compare": {"": "two or more ... found none"},
    "bottleneck": {"--source synthetic": "synthetic batches read nothing"},
    "max-batch": {
        "": "MODEL",
        "lenett": "Did you mean 'lenet'",
        "lenet resnet18": "one MODEL ... found 2",
        "lenet --data shapez": "shapes",
        "lenet --batch-size 0": "batch_size ... found '0'",
        "lenet --batch-size 51 --samples 50": "batch_size ... 51 ... 50",
        "lenet --accumulate 51 --samples 50": "accumulate 51",
        "lenet --memory-limit much": "memory_limit ... 512MiB",
        "lenet --memory-limit 0": "memory_limit",
        "-- gone.py": "no such script ... gone.py",
        "--": "wanted a script",
        "-- -m": "wanted a module",
        "-- --batch-size 4": "flags come before",
        "lenet -- train.py": "found both ... 'lenet'",
        "train.py": "stepscope max-batch -- train.py",
        "--lr 0.1 -- train.py": "--lr 0.1 ... --memory-limit",
        "--batch-size 0 -- train.py": "batch_size ... found '0'",
        "--memory-limit much -- train.py": "memory_limit",
    },
    "scale": {
        "--processes two": "processes: wanted whole numbers of 1 or more with commas",
        "--processes 0,1": "processes: wanted whole numbers of 1 or more",
        "--processes 1,,2": "processes: wanted whole numbers of 1 or more",
        "--processes 1,2,2": "processes: wanted each number once",
        "--processes 2": "processes: wanted two numbers or more to compare",
        "--processes 1,65": "at most the batch size, 64, found 65",
        "--processes 1,1025 --batch-size 2000": "less than or equal to 1024",
        "--repeats 0": "repeats: wanted 1 or more",
        "--repeats many": "repeats: wanted a whole number",
        "--samples 64": "wanted more than 2 steps in an epoch",
        "--max-steps 2": "wanted more than 2 steps in an epoch",
        "--samples 200": "64 samples for each of 2 processes: wanted more than 2 steps",
        "--samples 100": "wanted more than 2 steps in an epoch",
        "--predict 4": "predict: needs --bandwidth",
        "--predict 4 --bandwidth fast": "'fast' is not a bandwidth",
        "--predict 4 --bandwidth 0Gbit": "bandwidth above 0",
        "--predict 4 --bandwidth 1Gbit --latency 20": "latency: '20' is not a time with its unit",
        "--predict x --bandwidth 1Gbit": "predict: wanted whole numbers",
        "--predict 2 --bandwidth 1Gbit": "predict: wanted numbers above 2",
        "--predict 65 --bandwidth 1Gbit": "wanted at most 64 processes",
        "--bandwidth 1Gbit": "bandwidth: needs --predict",
        "--latency 1us": "latency: needs --predict",
        "--chart speed.bmp": "wanted a file name ending in",
        "--model nonet": "unknown model",
        "--resume nowhere": "is not a sweep folder",
        "--resume nowhere --repeats 2": "takes no other flag",
    },
    "lab": {
        "second-epcoh": "Did you mean 'second-epoch'",
        "memory --batch-size many": "batch_size",
        "memory --device cuda": "cuda",
        "memory --model lenett": "lenet",
        "memory --scale 0.5": "scale: lab memory does not take it",
        "epoch-times --scale 2": "scale: wanted a share above 0 and up to 1",
        "epoch-times --scale half": "scale: wanted a share such as 0.05",
        "epoch-times --repeats 0": "repeats: wanted 1 or more, found 0",
        "epoch-times --repeats few": "repeats: wanted a whole number",
        "one-vs-best --workers 3": "leaves nothing to compare",
        "architectures --batch-size many": "batch_size",
        "model --model resnet19": "Did you mean",
    },
    "accel estimate": {
        "": "a model or --layer",
        "lenet --layer C=1": "a model or --layer",
        "lenet --spatial 8by16": "free, or MxC",
        "lenet --spatial 17x16": "at most 16x16",
        "lenet --design nowhere.toml": "cannot read nowhere.toml",
        "mobilebert-small": "takes texts",
        "nonet": "unknown model",
        "efficient:w16-": "cannot read the model name",
        "lenet --chart energy.gif": "wanted a file name ending in",
    },
    "accel score": {
        "nowhere": "is not a run folder",
        "--accuracy 0.5": "missing --energy-mj",
        "--accuracy 50 --energy-mj 1 --cycles 1 --peak-activation-bytes 1": "0 to 1",
        "--accuracy nan --energy-mj 1 --cycles 1 --peak-activation-bytes 1": "0 to 1",
    },
    "accel search": {
        "": "budget: wanted limits",
        "--budget watts=1": "there is no figure 'watts'",
        "--budget cycles=0": "a number above 0",
        "--budget cycles=1e5 --trials 0": "1 or more",
        "--budget cycles=1e5 --trials many": "a whole number",
        "--budget cycles=1e5 --finals 99": "wanted 1 to 8",
        "--budget cycles=1e5 --optimizer adam": "a search needs sgd",
        "--budget cycles=1e5 --validation 0": "needs 1 held-out sample or more",
        "--budget cycles=1e5 --no-evaluate": "needs evaluations",
        "--budget cycles=1e5 --source synthetic": "needs evaluations",
        "--budget cycles=1e5 --spatial 8by16": "free, or MxC",
        "--budget cycles=1e5 --on rey": "Did you mean 'ray'?",
        "--budget cycles=1e5 --address 127.0.0.1:6379": "address: needs --on ray",
        "--budget cycles=1e5 --model nonet": "unknown model",
        "--resume nowhere": "is not a sweep folder",
        "--resume nowhere --budget cycles=1": "takes no other flag",
    },
    "summary": {
        "": "MODEL",
        "resnet19": "Did you mean 'resnet18'",
        "lenet --norm nome": "Did you mean 'none'",
        "resnet18 --input 1,32,32": "an input of 1x32x32 in stem.0 (Conv2d) ... 3 channels",
        "lenet --input 3,64,64": "classifier.0 (Linear) ... cannot be multiplied",
        **{
            f"lenet --input={shape}": f"--input: wanted ... like 3,32,32 ... found {shape!r}"
            for shape in ("", "3,a,32", "3,0,32", "3,-1,2", "3x32x32", "3,,32", "1e3", "٣")
        },
        **{
            f"lenet --classes={number}": f"--classes: wanted a whole number ... {number!r}"
            for number in ("0", "-1", "2.5", "ten")
        },
    },
    "serve": {
        "nowhere": "is not a folder",
        ". --port 70000": "from 0",
        ". --port much": "port",
        ". --host 'no such host'": "cannot listen",
    },
}


@pytest.mark.parametrize(
    ("command", "asked"),
    [(command, asked) for command, requests in WRONG_REQUESTS.items() for asked in requests],
)
def test_a_wrong_request_ends_with_2_and_one_message_before_anything_is_made(
    stepscope, command, asked
):
    (stepscope.folder / "train.py").touch()
    answer = stepscope(*command.split(), *shlex.split(asked))
    assert answer.is_refused(2, *WRONG_REQUESTS[command][asked].split(" ... "))
    assert [file.name for file in stepscope.folder.iterdir()] == ["train.py"]


@pytest.mark.parametrize("flag", ["--json", "--json=true"])
def test_with_json_an_error_is_one_object_too(stepscope, flag):
    answer = stepscope("run", "--batch-size", 0, flag)
    assert answer.json["exit_code"] == answer.code == 2
    assert "batch_size" in answer.json["error"]


def test_an_unknown_command_suggests_the_nearest(stepscope):
    answer = stepscope("rnu")
    assert answer.is_refused(2, 'Did you mean "run"')


def test_data_that_is_not_there_ends_with_3(stepscope):
    answer = stepscope("run", "--data", "cifar10", "--data-dir", "nothing")
    assert answer.is_refused(3, "stepscope data get cifar10")


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


def test_workers_that_shared_memory_cannot_hold_are_refused_before_they_start(stepscope):
    answer = stepscope("run", "--batch-size", 50000, "--workers", 1000, "--prefetch", 1000)
    assert answer.is_refused(5, "/dev/shm")


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
