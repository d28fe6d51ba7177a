"""`stepscope accel search --on ray`: designs trained on several nodes at once."""

import shlex

import pytest

BUDGET = ("--budget", "energy_mj=0.2,cycles=1e5")
SHORT = shlex.split("--trials 4 --epochs 2 --samples 128 --threads 1 --model lenet --batch-size 32")


@pytest.mark.long
def test_a_search_trains_on_both_nodes_and_tests_the_best_once(stepscope, cluster):
    cluster.add()
    cluster.add()
    answer = stepscope(
        "accel", "search", *BUDGET, *SHORT, "--on", "ray", "--address", cluster.address, "--json"
    )
    assert answer.code == 0, answer.err
    found = answer.json
    assert found["at_once"] == 2
    assert found["on"] == {"runner": "ray", "address": cluster.address, "mix_nodes": True}
    trials = found["trials"]
    assert [trial["status"] for trial in trials] == ["completed"] * 7
    assert [trial["repeat"] for trial in trials] == [1] * 4 + [2] * 2 + [3]
    assert len({trial["node"] for trial in trials}) == 2
    [tested] = [design for design in found["designs"] if design["test_accuracy"] is not None]
    assert tested["validation_accuracy"] is not None
