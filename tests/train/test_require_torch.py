"""A torch that is there and does not load is told from one that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import MachineError, MissingExtraError
from stepscope.processes.answer import needing_torch
from stepscope.supervisor.ask_process import AnsweringModule, ask_process


@pytest.mark.parametrize("kind", ["ImportError", "OSError"])
@pytest.mark.parametrize("module", ["torch_info", "peak_benchmark"])
def test_a_torch_whose_libraries_are_missing_is_told_as_that(
    tmp_path: Path, module: str, kind: str
) -> None:
    (tmp_path / "torch.py").write_text(f"raise {kind}('libcudart.so: no such file')\n")
    with pytest.raises(MachineError, match=r"does not load: libcudart\.so: no such file"):
        ask_process(
            AnsweringModule(f"stepscope.processes.{module}"), {}, {"PYTHONPATH": str(tmp_path)}
        )


@pytest.mark.parametrize(("missing", "extra"), [("torch", True), ("sympy", False)])
def test_only_a_torch_that_is_not_there_wants_to_be_installed(missing: str, extra: bool) -> None:
    with pytest.raises(MachineError, match=missing) as raised, needing_torch("training"):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    assert isinstance(raised.value, MissingExtraError) == extra
