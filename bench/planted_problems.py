"""Are the verdicts right? Scripts with one planted problem each, and twins without it.

Every script is traced as a user would trace it. The verdict must name the planted cause; on the
twin it must not. Where the twin has just the recommended change, the speed-up that the verdict
expects is compared with that of the twin. Run all, or some:
`bench/planted_problems.py slow_transform tiny_batch`.
"""

# ruff: noqa: E501
from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE = """
import os, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
{setup}

class Images(Dataset):
    def __init__(self, size, transform=None):
        self.size, self.transform = size, transform
        self.images = torch.rand(256, 3, 32, 32)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = self.images[index % 256]
        {item}
        if self.transform is not None:
            image = self.transform(image)
        return image, index % 10

{classes}

def build():
    return nn.Sequential(
        nn.Conv2d(3, {width}, 3, padding=1), nn.ReLU(),
        nn.Conv2d({width}, {width}, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d({width}, {width}, 3, padding=1, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear({width} * 16, 10))

def evaluate(model, loader):
    model.eval()
    correct = 0
    {eval_context}
        for images, labels in loader:
            correct += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return correct

def main():
    train = DataLoader(Images({samples}, {transform}), batch_size={batch}, shuffle=True{loader})
    test = DataLoader(Images({test_samples}), batch_size=64)
    model = build()
    {model}
    optimizer = {optimizer}
    loss_function = nn.CrossEntropyLoss()
    history = []
    for epoch in range({epochs}):
        for step, (images, labels) in enumerate(train):
            {before}
            loss = loss_function(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            {after}
        {each_epoch}
        print("epoch", epoch, flush=True)

if __name__ == "__main__":
    main()
"""

DEFAULTS = {
    "setup": "",
    "item": "",
    "classes": "",
    "width": "24",
    "eval_context": "with torch.no_grad():",
    "samples": "1600",
    "transform": "None",
    "batch": "32",
    "loader": "",
    "test_samples": "320",
    "model": "",
    "optimizer": "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)",
    "epochs": "4",
    "before": "",
    "after": "",
    "each_epoch": "evaluate(model, test)",
}

COMPOSE = """
class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image

class Flip:
    def __call__(self, image):
        return image.flip(-1)

class Blur:
    def __init__(self, times):
        self.times = times

    def __call__(self, image):
        for _ in range(self.times):
            image = (image + image.roll(1, -1)) / 2
        return image
"""

FILES = """
import pathlib, tempfile
FOLDER = pathlib.Path(tempfile.mkdtemp())
for number in range(64):
    (FOLDER / f"{number}.bin").write_bytes(bytes(3 * 32 * 32))

def read_slowly(path):
    with open(path, "rb") as file:
        time.sleep(SLOW)  # a slow disk
        return file.read()
"""

COLLATE = """
def slow_collate(samples):
    images = torch.stack([image for image, _ in samples])
    for _ in range(TIMES):
        images = torch.stack([image for image in images])
    return images, torch.tensor([label for _, label in samples])
"""


@dataclass(frozen=True)
class Problem:
    """Parts of the script with the problem and of its twin, and the causes that name it."""

    causes: tuple[str, ...]
    planted: dict[str, str]
    twin: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # that the verdict must contain
    gain: bool = False  # whether the twin has just the recommended change
    minor: bool = False  # costs hardly any time: a finding is enough


# Numbers that a verdict recommends, and what stands for them in a twin.
RECOMMENDED = {"WORKERS": r"num_workers=(\d+)", "EVERY": r"every (\d+) epochs"}
WITHOUT_ADVICE = "2"
WORST_ERROR = 0.25


PROBLEMS: dict[str, Problem] = {
    "slow_transform": Problem(
        ("slow_transform",),
        {"classes": COMPOSE, "transform": "Compose([Flip(), Blur(150)])"},
        {"classes": COMPOSE, "transform": "Compose([Flip(), Blur(1)])"},
        ("Blur",),
        gain=True,
    ),
    "slow_transform_with_workers": Problem(
        ("slow_transform",),
        {
            "classes": COMPOSE,
            "transform": "Compose([Flip(), Blur(300)])",
            "loader": ", num_workers=2",
        },
        {
            "classes": COMPOSE,
            "transform": "Compose([Flip(), Blur(1)])",
            "loader": ", num_workers=2",
        },
        ("Blur",),
        gain=True,
    ),
    "slow_reads": Problem(
        ("slow_reads",),
        {
            "setup": "SLOW = 0.002",
            "classes": FILES,
            "item": 'read_slowly(FOLDER / f"{index % 64}.bin")',
        },
        {
            "setup": "import functools\nSLOW = 0.002",
            "classes": FILES + "\nread_once = functools.lru_cache(read_slowly)\n",
            "item": 'read_once(FOLDER / f"{index % 64}.bin")',
        },
        ("reading",),
    ),
    "slow_collate": Problem(
        ("slow_collate",),
        {"setup": "TIMES = 150", "classes": COLLATE, "loader": ", collate_fn=slow_collate"},
        {"setup": "TIMES = 0", "classes": COLLATE, "loader": ", collate_fn=slow_collate"},
        ("collat",),
        gain=True,
    ),
    "rare_slow_samples": Problem(
        ("slow_samples",),
        {"item": "time.sleep(0.15 if index % 40 == 7 else 0)"},
        {"item": "time.sleep(0)"},
        ("index",),
        gain=True,
    ),
    "too_few_workers": Problem(
        ("too_few_workers", "slow_dataset"),
        {"item": "time.sleep(0.001)"},
        {"item": "time.sleep(0.001)", "loader": ", num_workers=WORKERS, persistent_workers=True"},
        ("num_workers=",),
        gain=True,
    ),
    "worker_restarts": Problem(
        ("worker_restarts",),
        {"samples": "320", "epochs": "14", "loader": ", num_workers=2", "each_epoch": "pass"},
        {
            "samples": "320",
            "epochs": "14",
            "loader": ", num_workers=2, persistent_workers=True",
            "each_epoch": "pass",
        },
        ("persistent_workers=True",),
        gain=True,
    ),
    "too_many_workers": Problem(
        ("too_many_workers",),
        {"samples": "960", "epochs": "6", "loader": ", num_workers=16"},
        {
            "samples": "960",
            "epochs": "6",
            "loader": ", num_workers=WORKERS, persistent_workers=True",
        },
        ("num_workers=",),
        gain=True,
    ),
    "evaluation_every_few_steps": Problem(
        ("frequent_evaluation",),
        {"after": "step % 10 == 0 and evaluate(model, test)"},
        {},
        ("once an epoch",),
        gain=True,
    ),
    "evaluation_too_large": Problem(
        ("frequent_evaluation",),
        {"samples": "640", "epochs": "8", "test_samples": "3000"},
        {
            "samples": "640",
            "epochs": "8",
            "test_samples": "3000",
            "each_epoch": "epoch % EVERY == 0 and evaluate(model, test)",
        },
        gain=True,
    ),
    "checkpoint_every_step": Problem(
        ("frequent_checkpoints",),
        {
            "after": 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": torch.rand(1_000_000)}, "last.pt")'
        },
        {
            "each_epoch": 'evaluate(model, test)\n        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": torch.rand(1_000_000)}, "last.pt")'
        },
        ("torch.save", "train.py:"),
        gain=True,
    ),
    "statistics_every_step": Problem(
        ("work_in_loop", "synchronising_reads"),
        {
            "classes": """
def weight_statistics(model):
    return {name: torch.histc(torch.sort(p.detach().flatten().repeat(40)).values, 50) for name, p in model.named_parameters()}
""",
            "after": "history.append(weight_statistics(model))",
        },
        {},
        ("train.py:",),
        gain=True,
    ),
    "logging_every_step": Problem(
        ("logging_in_loop",),
        {
            "setup": "import logging\nlogging.basicConfig(filename='train.log', level=logging.DEBUG)",
            "after": "for p in model.parameters(): [logging.debug('weight %s', v) for v in range(60)]",
        },
        {
            "setup": "import logging\nlogging.basicConfig(filename='train.log', level=logging.DEBUG)",
            "after": "if step % 50 == 0: logging.debug('loss %s', loss)",
        },
        ("train.py:",),
        gain=True,
    ),
    "printing_every_step": Problem(
        ("logging_in_loop", "synchronising_reads"),
        {"after": "print(model[0].weight.detach().flatten()[:400].tolist(), model[2].weight)"},
        {"after": "if step == 0: print(loss.item())"},
        ("train.py:",),
        gain=True,
    ),
    "synchronising_reads": Problem(
        ("synchronising_reads",),
        {
            "after": "history.append([v.item() for p in model.parameters() for v in p.detach().flatten()[:900]])"
        },
        {"after": "history.append(loss.item())"},
        ("train.py:",),
        gain=True,
    ),
    "gradient_clipping_by_hand": Problem(
        ("work_in_loop", "synchronising_reads"),
        {
            "after": "",
            "before": "for p in model.parameters():\n                for row in p.detach().reshape(-1, p.shape[-1])[:1000]: row.norm().clamp(max=1.0)",
        },
        {"before": ""},
        ("train.py:",),
        gain=True,
    ),
    "garbage_collection": Problem(
        ("garbage_collection",),
        {"setup": "import gc", "after": "gc.collect()"},
        {"setup": "import gc", "each_epoch": "evaluate(model, test)\n        gc.collect()"},
        ("train.py:",),
        gain=True,
    ),
    "pause_between_epochs": Problem(
        ("gaps_between_epochs",),
        {"samples": "640", "epochs": "6", "each_epoch": "time.sleep(0.4)"},
        {"samples": "640", "epochs": "6", "each_epoch": "time.sleep(0.0)"},
        ("train.py:",),
        gain=True,
    ),
    "sleep_in_loop": Problem(
        ("work_in_loop",),
        {"after": "time.sleep(0.02)  # wait for the device"},
        {},
        ("train.py:",),
        gain=True,
    ),
    "optimizer_tensor_by_tensor": Problem(
        ("unfused_optimizer",),
        {
            "model": "extra = nn.ParameterList([nn.Parameter(torch.rand(40, 40)) for _ in range(400)])",
            "before": "images = images + sum(p.sum() for p in extra) * 0",
            "optimizer": "torch.optim.AdamW([*model.parameters(), *extra], lr=0.001, foreach=False, fused=False)",
        },
        {
            "model": "extra = nn.ParameterList([nn.Parameter(torch.rand(40, 40)) for _ in range(400)])",
            "before": "images = images + sum(p.sum() for p in extra) * 0",
            "optimizer": "torch.optim.AdamW([*model.parameters(), *extra], lr=0.001, fused=True)",
        },
        gain=True,
    ),
    "tiny_batch": Problem(
        ("tiny_batch",),
        {"batch": "1", "samples": "500", "width": "8", "test_samples": "64"},
        {"batch": "64", "samples": "3200", "width": "24"},
    ),
    "too_many_threads": Problem(
        ("too_many_threads",),
        {"setup": "torch.set_num_threads(32)"},
        {"setup": "torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))"},
        gain=True,
    ),
    "contiguous_convolutions": Problem(
        ("contiguous_convolutions",),
        {"width": "96", "samples": "640", "epochs": "3", "test_samples": "64"},
        {
            "width": "96",
            "samples": "640",
            "epochs": "3",
            "test_samples": "64",
            "model": "model = model.to(memory_format=torch.channels_last)",
            "before": "images = images.contiguous(memory_format=torch.channels_last)",
        },
        gain=True,
    ),
    "double_precision": Problem(
        ("double_precision",),
        {
            "model": "model = model.double()",
            "before": "images = images.double()",
            "test_samples": "0",
            "each_epoch": "pass",
        },
        {"test_samples": "0", "each_epoch": "pass"},
        gain=True,
    ),
    "anomaly_detection": Problem(
        ("anomaly_detection",),
        {"setup": "torch.autograd.set_detect_anomaly(True)"},
        {},
        gain=True,
    ),
    "gradients_in_evaluation": Problem(
        ("gradients_in_evaluation",),
        {"eval_context": "if True:", "test_samples": "1600", "epochs": "6"},
        {"test_samples": "1600", "epochs": "6"},
        minor=True,
    ),
    "graph_kept": Problem(
        ("growing_memory",),
        {
            "samples": "3200",
            "epochs": "6",
            "width": "48",
            "before": "images = images.repeat(1, 1, 2, 2)",
            "after": "history.append(loss + 0 * model(images[:4]).sum())",
        },
        {
            "samples": "3200",
            "epochs": "6",
            "width": "48",
            "before": "images = images.repeat(1, 1, 2, 2)",
            "after": "history.append(loss.item() + 0 * model(images[:4]).sum().item())",
        },
    ),
    "recompilation": Problem(
        ("recompilations",),
        {
            "model": "model = torch.compile(model, dynamic=False)",
            "before": "images, labels = images[: 8 + step % 6], labels[: 8 + step % 6]",
            "samples": "960",
            "epochs": "3",
            "each_epoch": "pass",
        },
        {
            "model": "model = torch.compile(model)",
            "samples": "960",
            "epochs": "3",
            "each_epoch": "pass",
            "loader": ", drop_last=True",
        },
    ),
    "graph_breaks": Problem(
        ("graph_breaks",),
        {
            "classes": """
class Noisy(nn.Module):
    def forward(self, x):
        time.sleep(0)
        print(end="")
        return x if x.sum().item() > -1e9 else -x
""",
            "model": "model = torch.compile(nn.Sequential(Noisy(), model[:2], Noisy(), model[2:4], Noisy(), model[4:6], Noisy(), model[6:], Noisy()))",
            "samples": "1600",
            "epochs": "3",
            "each_epoch": "pass",
        },
        {
            "model": "model = torch.compile(model)",
            "samples": "1600",
            "epochs": "3",
            "each_epoch": "pass",
            "loader": ", drop_last=True",
        },
    ),
    "busy_machine": Problem(
        ("busy_machine",),
        {"setup": "# busy"},
        {},
    ),
}


def script_of(parts: dict[str, str]) -> str:
    """Return the script with these parts instead of the defaults."""
    text = BASE
    for name, part in {**DEFAULTS, **parts}.items():
        text = text.replace("{" + name + "}", part)
    return text


def verdict_of(parts: dict[str, str], folder: Path) -> dict[str, Any]:
    """Trace a script and return its verdict, and the names of all findings."""
    (folder / "train.py").write_text(script_of(parts))
    others = []
    if "# busy" in parts.get("setup", ""):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "stepscope", "trace", "--json", "train.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    if done.returncode:
        raise SystemExit(f"the script failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    report = subprocess.run(
        [sys.executable, "-m", "stepscope", "report", "--json", answer["path"]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [each["name"] for each in json.loads(report.stdout)["findings"]]
    return {
        **answer["summary"]["verdict"],
        "findings": found,
        "wall_s": answer["summary"]["wall_s"],
    }


def with_advice(parts: dict[str, str], text: str) -> dict[str, str]:
    """Return the parts of a twin with the numbers that a verdict recommends."""
    numbers = {
        name: found[1] if (found := re.search(pattern, text)) else WITHOUT_ADVICE
        for name, pattern in RECOMMENDED.items()
    }
    return {
        part: functools.reduce(lambda each, number: each.replace(*number), numbers.items(), code)
        for part, code in parts.items()
    }


def is_right(problem: Problem, kind: str, verdict: dict[str, Any]) -> bool:
    """Return whether a verdict names the planted problem, or keeps silent on a twin."""
    if kind == "twin":
        return verdict["cause"] not in problem.causes
    if problem.minor:
        return not set(problem.causes).isdisjoint(verdict["findings"])
    named = all(word in verdict["text"] for word in problem.words)
    return named and verdict["cause"] in problem.causes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="problems; all by default")
    parser.add_argument("--keep", type=Path, help="keep the scripts and runs in this folder")
    args = parser.parse_args()
    wrong, far = 0, 0
    for name in args.names or PROBLEMS:
        problem, verdicts = PROBLEMS[name], {}
        for kind in ("planted", "twin"):
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made) if args.keep is None else args.keep / name / kind
                folder.mkdir(parents=True, exist_ok=True)
                advice = verdicts["planted"]["text"] if verdicts else ""
                parts = problem.planted if not verdicts else with_advice(problem.twin, advice)
                verdict = verdicts[kind] = verdict_of(parts, folder)
            right = is_right(problem, kind, verdict)
            wrong += not right
            print(f"{'ok   ' if right else 'WRONG'} {name} ({kind}): {verdict['cause']}")
            print(f"      {verdict['text']}  [{', '.join(verdict['findings'])}]", flush=True)
        expected = verdicts["planted"]["expected_speedup"]
        if problem.gain and expected is not None:
            measured = verdicts["planted"]["wall_s"] / verdicts["twin"]["wall_s"]
            error = expected / measured - 1
            far += abs(error) > WORST_ERROR
            mark = "FAR  " if abs(error) > WORST_ERROR else "     "
            print(
                f"{mark} expected {expected:.2f}, measured {measured:.2f}: {error:+.0%}", flush=True
            )
    print(f"{wrong} wrong, {far} predictions off by more than {WORST_ERROR:.0%}")
    return 1 if wrong or far else 0


if __name__ == "__main__":
    sys.exit(main())
