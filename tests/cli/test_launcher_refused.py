"""Commands that start trials themselves are refused under torchrun, before anything starts."""

import pytest

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "--over", "workers=0,1"),
        ("accel", "search", "--budget", "energy_mj=0.5"),
        ("scale",),
        ("workers",),
        ("bottleneck",),
        ("max-batch", "lenet"),
        ("lab", "hyperparameters"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_several_of_a_command_that_starts_its_own_trials_are_refused(stepscope, words):
    answer = stepscope(*words, env=TORCHRUN)

    assert answer.code == 2, answer.err
    command = "accel search" if words[0] == "accel" else words[0]
    assert f"{command}: wanted one process" in answer.err
    assert "found 2, started by torchrun" in answer.err
    assert list(stepscope.folder.iterdir()) == []


def test_one_process_of_torchrun_is_as_good_as_none(stepscope):
    answer = stepscope("sweep", env={**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"})

    assert answer.is_refused(2, "over: wanted at least one axis")
