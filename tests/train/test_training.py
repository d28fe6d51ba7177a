"""What a training does to its weights, whoever looks on and however it is fed."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from user_networks import BLOCKS, DROPOUT, LINEAR, weights

from stepscope.errors import AnswerIsNo, MachineError, RequestError
from stepscope.records.table import read_table
from stepscope.settings.load_settings import validate
from stepscope.train.device import resolve


def test_the_same_seed_gives_the_same_losses_to_the_bit(train, trained):
    assert train().steps["loss"] == trained().steps["loss"]


@pytest.mark.parametrize("changed", [{"seed": 2}, {"augment": "none"}], ids=str)
def test_another_seed_and_other_images_give_other_losses(train, trained, changed):
    assert train(**changed, epochs=1).steps["loss"] != trained(epochs=1).steps["loss"]


@pytest.mark.parametrize("how", [{"workers": 2}, {"workers": 1, "pipeline": "sample"}], ids=str)
def test_however_batches_are_made_they_are_the_very_same(trained, how):
    assert trained(**how).steps["loss"] == trained().steps["loss"]


def test_data_read_from_files_gives_the_losses_of_data_in_memory(train, trained, tmp_path):
    files = train(source="local", data_dir=str(tmp_path / "data"))
    assert files.steps["loss"] == trained().steps["loss"]


def test_a_network_with_dropout_repeats_itself_with_workers_too(train):
    settings = {"model": DROPOUT, "samples": 32, "batch_size": 16, "epochs": 1}
    alone = train(**settings)
    assert train(**settings, workers=1).steps["loss"] == alone.steps["loss"]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adadelta", "rmsprop", "adam", "adamw"])
def test_every_optimizer_trains(train, optimizer):
    lr = {"adadelta": 0.1, "sgd": 0.001}.get(optimizer, 0.0005)
    run = train(optimizer=optimizer, lr=lr, model=LINEAR, epochs=3, augment="none")
    assert _has_learned(run)


def test_nesterov_is_really_on_when_asked_for(train):
    plain, nesterov = train(lr=0.05, epochs=1), train(lr=0.05, epochs=1, optimizer="nesterov")
    assert plain.steps["loss"][0] == nesterov.steps["loss"][0], "the weights begin alike"
    assert plain.steps["loss"][1:] != nesterov.steps["loss"][1:]
    assert nesterov.info["spec"]["nesterov"] is True


def test_weight_decay_makes_weights_smaller(train, trained):
    def norm(run):
        return sum(float(value.square().sum()) for value in weights(run).values())

    assert norm(train(weight_decay=0.1)) < norm(trained())


def test_accumulated_batches_give_the_weights_of_one_large_batch(train):
    large = train(batch_size=64, samples=200, augment="none")
    small = train(batch_size=16, accumulate=4, samples=200, augment="none")
    assert len(small.steps) == len(large.steps) == 8
    assert small.steps["samples"] == large.steps["samples"]
    for name, value in weights(large).items():
        torch.testing.assert_close(weights(small)[name], value, rtol=1e-4, atol=1e-5)


def test_recomputed_activations_give_the_same_weights_and_statistics(train):
    settings = {"model": BLOCKS, "samples": 16, "batch_size": 8, "epochs": 1}
    kept, recomputed = train(**settings), train(**settings, checkpoint_activations=True)
    for name, value in weights(kept).items():
        torch.testing.assert_close(weights(recomputed)[name], value, rtol=1e-4, atol=1e-5)


def test_a_network_without_blocks_cannot_recompute(train):
    with pytest.raises(RequestError, match="no sequence of blocks"):
        train(checkpoint_activations=True)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_and_differs_from_fp32(train, trained, precision):
    run = train(precision=precision, lr=0.001, model=LINEAR, epochs=3, augment="none")
    assert _has_learned(run)
    assert trained(precision=precision).steps["loss"] != trained().steps["loss"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what is to be missing")
def test_a_device_that_is_not_there_is_a_missing_part_of_the_machine(train):
    with pytest.raises(MachineError, match=r"without CUDA|no CUDA device"):
        train(device="cuda")


def test_auto_is_resolved_into_what_is_used():
    resolved = resolve(validate({}))
    assert resolved.device in ("cpu", "cuda", "mps")
    assert resolved.memory_format in ("channels_last", "contiguous")
    assert resolved.threads == torch.get_num_threads()
    assert resolve(validate({"memory_format": "contiguous"})).memory_format == "contiguous"


def test_max_steps_ends_the_run_in_the_middle_of_an_epoch_with_a_test(train):
    run = train(max_steps=8)  # 6 steps an epoch
    assert list(zip(run.steps["epoch"], run.steps["step"], strict=True))[-2:] == [(2, 1), (2, 2)]
    assert run.epochs["split"] == ["test", "train", "test", "train", "test"]


def test_a_loss_that_turns_nan_ends_the_run_and_is_recorded(train, tmp_path):
    with pytest.raises(AnswerIsNo, match=r"the loss became (nan|inf)"):
        train(lr=1e6, epochs=5)
    run = next((tmp_path / "runs").glob("*lenet*"))
    assert (run / "steps.csv").read_text().count("\n") > 1


def test_steps_follow_one_another_without_a_gap_or_an_overlap(trained):
    in_epoch = [row for row in trained().steps.rows() if row["epoch"] == 2]
    for before, after in pairwise(in_epoch):
        assert after["start_s"] == pytest.approx(before["start_s"] + before["step_s"], abs=2e-9)


def test_the_phases_of_every_step_add_up_to_the_step(trained):
    for row in trained(workers=2).steps.rows():
        phases = ("data", "transfer", "forward", "backward", "optimizer", "other")
        assert sum(row[f"{phase}_s"] for phase in phases) == pytest.approx(row["step_s"], abs=1e-8)
        assert row["detail"] == "full"


def test_wait_and_work_of_the_loader_are_both_recorded(trained):
    inside = trained()
    assert set(inside.steps["load_worker"]) == {-1}
    for row in inside.steps.rows():
        assert 0 < row["load_s"] <= row["data_s"], "with no worker the loop waits for all the work"
        assert row["load_start_s"] >= row["start_s"]
    outside = trained(workers=2)
    assert set(outside.steps["load_worker"]) == {0, 1}
    assert all(value > 0 for value in outside.steps["load_cpu_s"])


def _has_learned(run):
    first, *_, last = (row["loss"] for row in run.epochs.rows() if row["split"] == "train")
    return last < first


def test_a_record_counts_batches_also_where_several_are_one_step(train):
    run = train(model=LINEAR, batch_size=2, accumulate=8, samples=450, epochs=1, evaluate=False)
    rows = read_table(run.path / "records.csv").rows()
    numbers = [(row["value1"], row["value2"]) for row in rows if row["type"] == 2]
    assert numbers == [(104, 225), (200, 225), (225, 225)], "the 100th is in the step to 104"


# --- networks that cannot be trained --------------------------------------------------------------


def fails(num_classes: int) -> nn.Module:
    raise ValueError("no such weights")


UNFIT = SimpleNamespace(
    number=lambda: 7,
    other_images=lambda classes: nn.Linear(10, classes),
    no_scores=nn.Flatten,
    frozen=lambda classes: nn.Sequential(
        nn.Flatten(), nn.Linear(3072, classes).requires_grad_(False)
    ),
    without_parameters=lambda classes: nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(classes)),
)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("fails", "no such weights"),
        ("UNFIT.number", "int"),
        ("UNFIT.other_images", "fails on images of 3x32x32"),
        ("UNFIT.no_scores", r"\(2, 3072\)"),
        ("UNFIT.frozen", "no trainable parameter"),
        ("UNFIT.without_parameters", "no trainable parameter"),
    ],
)
def test_what_cannot_be_trained_is_a_wrong_request(train, network, said):
    with pytest.raises(RequestError, match=said):
        train(model=f"{__name__}:{network}")
