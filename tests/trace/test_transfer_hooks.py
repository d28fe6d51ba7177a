"""What hooks record of moves to a device, and when they stop looking."""

from __future__ import annotations

import pytest
import torch
from installed_hooks import kinds, watched
from torch import nn, optim


def test_a_move_that_moves_nothing_is_none() -> None:
    with watched() as hooks:
        batch = torch.ones(2, 3)
        for device in ("cpu", torch.device("cpu")):
            batch.to(device)
            batch.to(device=device)
        assert not kinds(hooks)
        batch.to("cpu", torch.float64)
        batch.to("meta")
    assert kinds(hooks) == {"MOVE": 2, "MOVED": 2}


def test_moves_are_looked_at_no_more_when_many_moved_nothing() -> None:
    batch, on_device = torch.ones(2, 3), nn.Linear(3, 1, device="meta")
    with watched() as hooks:
        nn.Sequential(*(nn.Linear(3, 1) for _ in range(60))).to("cpu")
        assert hooks.idle_moves_left == 100, "moves before the training say nothing of it"
        optim.SGD([torch.ones(1)], lr=0.1).step()
        hooks.buffer.fields.clear()
        for _ in range(100):
            batch.to("cpu", non_blocking=True)
        assert "to" not in vars(torch.Tensor), "the hook is in nobody's way"
        batch.to("meta")
        assert not kinds(hooks)
        on_device(torch.ones(2, 3, device="meta"))  # here something has to be moved after all
        batch.to("meta")
        assert kinds(hooks)["MOVE"] == 1


def test_a_hook_is_not_taken_off_from_under_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    with watched() as hooks:
        optim.SGD([torch.ones(1)], lr=0.1).step()
        ours = torch.Tensor.to
        monkeypatch.setattr(torch.Tensor, "to", lambda *args: seen.append(args) or ours(*args))
        for _ in range(101):
            torch.ones(2).to("cpu")
        monkeypatch.undo()
        assert (len(seen), hooks.idle_moves_left) == (101, 0)
        assert torch.Tensor.to is ours
    assert "to" not in vars(torch.Tensor)


def test_moves_are_looked_at_for_good_once_something_moved() -> None:
    batch = torch.ones(2, 3)
    with watched() as hooks:
        batch.to("meta")
        for _ in range(200):
            batch.to("cpu")
        batch.to("meta")
    assert kinds(hooks)["MOVE"] == 2
