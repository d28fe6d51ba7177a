"""What torch.compile does in a traced script; the long tests have the real inductor backend."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from stepscope.meter.clock import now_ns
from stepscope.trace.compile_watch import CompileWatch

SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Noisy(nn.Module):
    def forward(self, x):
        print(end="")
        return x.relu()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 2), Noisy())
compiled = torch.compile(model, dynamic=False, backend=sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.rand(11, 4), torch.rand(11, 2))
for epoch in range(2):
    for inputs, wanted in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        (compiled(inputs) - wanted).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture(
    scope="module", params=["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]
)
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The summary of a script that is compiled in two parts, twice."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "trace", "--json", "train.py", request.param],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    summary: dict[str, Any] = json.loads(done.stdout)["summary"]
    return summary


def test_a_smaller_last_batch_is_compiled_again(traced: dict[str, Any]) -> None:
    compiled = traced["compilation"]
    assert compiled["recompilations"] >= 1
    reasons = [each["reason"] for each in compiled["compilations"] if each["reason"]]
    assert all("size mismatch at index 0. expected 4, actual 3" in reason for reason in reasons)
    assert 0 < compiled["recompilations_s"] < compiled["total_s"] < traced["wall_s"]
    assert not compiled["limit_reached"]


def test_compilations_have_their_line_and_time(traced: dict[str, Any]) -> None:
    compilations = traced["compilation"]["compilations"]
    first = next(each for each in compilations if each["function"] == "forward")
    line = SCRIPT.splitlines().index("    def forward(self, x):") + 1
    assert first["line"] == f"train.py:{line}"
    for each in compilations:
        assert 0 < each["start_s"] < each["start_s"] + each["took_s"] < traced["wall_s"]


def test_graph_breaks_have_their_line_and_reason(traced: dict[str, Any]) -> None:
    (found,) = traced["compilation"]["graph_breaks"]
    line = SCRIPT.splitlines().index('        print(end="")') + 1
    assert found["line"] == f"train.py:{line}"
    assert "Failed to trace builtin operator" in found["reason"]


def test_hooks_are_not_compiled_themselves(traced: dict[str, Any]) -> None:
    functions = {each["function"] for each in traced["compilation"]["compilations"]}
    assert "call" not in functions  # the hook on modules, which a graph break reaches


def test_a_compiled_script_says_why_its_operations_are_not_counted(traced: dict[str, Any]) -> None:
    assert traced["script_setup"]["compiled"]
    assert traced["flops"] is None
    assert traced["absent"]["flops"]


def test_a_script_that_compiles_nothing_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    watch = CompileWatch(now_ns())
    watch.look()
    assert watch.figures() is None


def test_another_form_of_torch_s_records_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", object())
    watch = CompileWatch(now_ns())
    watch.look()
    assert watch.figures() is None
    assert "another form" in str(watch.absent)
