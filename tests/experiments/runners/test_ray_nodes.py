"""Where a cluster is, which nodes take which trials, what travels of a record: without Ray."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope import __version__
from stepscope.errors import MachineError, RequestError
from stepscope.experiments.runners import ray_cluster, ray_task
from stepscope.experiments.runners.ray_cluster import (
    Node,
    NodePool,
    _look,
    find_cluster,
    host_and_port,
)
from stepscope.experiments.runners.ray_runner import _Work
from stepscope.experiments.runners.ray_task import Parcel, Refusal, pack, unpack
from stepscope.experiments.runners.runner import (
    HERE,
    Here,
    PlannedTrial,
    kind_of_machine,
    memory_kind,
)
from stepscope.experiments.workload import TrainingWorkload, TrialRequest
from stepscope.records import schema
from stepscope.records.sweep_folder import Trial
from stepscope.supervisor.child_supervisor import Outcome, SilentListener

TRAINING = TrainingWorkload({"samples": 64, "batch_size": 32}, quick=True)
FAST, ALSO_FAST, SLOW, OLD = (
    Node(name, name, kind, 1.0, 0.0)
    for name, kind in (("a", "fast"), ("b", "fast"), ("c", "slow"), ("d", "old"))
)
WHY = Refusal("its disk is full.", 5)


def pool_of(*nodes: Node) -> NodePool:
    kinds = {node.id: node.kind for node in nodes}
    return NodePool(ready={node.id: node for node in nodes}, kind_of=kinds)


def planned_trials(
    rounds: int, settings: int = 1, kinds: Mapping[int, str] | None = None
) -> list[PlannedTrial]:
    """Plan rounds of some settings; `kinds` of node have begun a round before."""
    request = TrialRequest(Path("nowhere"), SilentListener())
    trials = [
        Trial(number, {"workers": number % settings}, number // settings + 1)
        for number in range(rounds * settings)
    ]
    return [PlannedTrial(each, request, (kinds or {}).get(each.repeat)) for each in trials]


def work_of(
    pool: NodePool, planned: list[PlannedTrial], *, mix_nodes: bool = False
) -> tuple[_Work, list[str]]:
    said: list[str] = []
    return _Work(TRAINING, pool, planned, lambda trial: None, said.append, mix_nodes), said


def asked(
    pool: NodePool, settings: list[dict[str, Any]], workload: TrainingWorkload = TRAINING
) -> Any:
    pool.ask_for(workload, settings)
    return _look()(__version__, pool.asked)


def test_a_node_is_asked_for_its_version_its_kind_and_every_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    kind, refusal = asked(NodePool(), [{"workers": 0}])
    assert (kind, refusal) == (kind_of_machine(), None)
    kind, (message, code) = asked(NodePool(), [{"workers": 0}, {"model": "lenett"}])
    assert (kind, code) == (None, 2)
    assert "lenett" in message
    _, (message, code) = _look()("0.0.1", None)
    assert (message.startswith(f"it has stepscope {__version__}, wanted 0.0.1"), code) == (True, 5)


def test_a_node_that_is_not_as_required_refuses_before_any_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_SYSTEM_ROOT", str(tmp_path))
    strict = TrainingWorkload({**TRAINING.asked, "require": "clock_source=tsc"}, quick=True)
    kind, (message, code) = asked(NodePool(), [{"workers": 0}], strict)
    assert (kind, code) == (None, 5)
    assert "clock_source=tsc" in message


def test_a_setting_is_asked_about_once_however_often_it_is_tried(tmp_path: Path) -> None:
    pool, again = NodePool(), NodePool()
    pool.ask_for(TRAINING, [{"workers": 0}, {"workers": 1}] * 50)
    again.ask_for(TRAINING, [{"workers": 0}, {"workers": 1}])
    assert pool.asked == again.asked


def test_a_kind_whose_only_node_is_looked_at_again_still_has_its_round() -> None:
    pool = pool_of(FAST, SLOW)
    work, _ = work_of(pool, planned_trials(rounds=1, settings=3))
    planned = work._take(FAST)
    assert planned is not None
    list(work._again(planned, FAST, WHY))
    assert pool.ready == {SLOW.id: SLOW}
    assert work._take(SLOW) is None


def test_a_kind_that_gave_no_sign_for_long_leaves_its_round_to_others() -> None:
    pool = pool_of(FAST, SLOW)
    pool.lose(FAST)
    assert pool.kinds(time.monotonic()) == ["fast", "slow"]
    assert pool.kinds(time.monotonic() + 3600) == ["slow"]


@pytest.mark.parametrize(("other", "mix_nodes"), [(ALSO_FAST, False), (SLOW, True)])
def test_a_lost_trial_is_left_to_another_node_where_there_is_one(
    other: Node, mix_nodes: bool
) -> None:
    pool = pool_of(FAST, other)
    work, said = work_of(pool, planned_trials(rounds=2), mix_nodes=mix_nodes)
    planned = work._take(FAST)
    assert planned is not None
    assert list(work._again(planned, FAST, WHY)) == []
    assert said == ["trial 1 was lost on a and is repeated: its disk is full."]
    pool.ready[FAST.id] = FAST  # it was looked at, and will do
    next_one = work._take(FAST)
    assert next_one is not None
    assert next_one.trial.index == 1
    assert work._take(FAST) is None
    assert work._take(other) == planned


def test_a_lost_trial_is_made_again_where_it_was_when_there_is_nobody_else() -> None:
    pool = pool_of(FAST, SLOW)
    work, _ = work_of(pool, planned_trials(rounds=1))
    planned = work._take(FAST)
    assert planned is not None
    list(work._again(planned, FAST, WHY))
    pool.ready[FAST.id] = FAST
    assert work._take(SLOW) is None
    assert work._take(FAST) == planned


def test_a_trial_that_every_node_refuses_has_failed_with_what_they_said() -> None:
    work, _ = work_of(pool_of(FAST), [])
    (planned,) = planned_trials(rounds=1)
    ended = [list(work._again(planned, FAST, Refusal("no data.", 3))) for _ in range(3)]
    assert ended[:2] == [[], []]
    ((_, outcome),) = ended[2]
    assert (outcome.status, outcome.exit_code) == (schema.FAILED, 3)
    assert outcome.reason == "it was lost 3 times, the last time on a: no data."


class Written:
    """Something that is run by writing a line to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def check(self, values: Mapping[str, Any]) -> None: ...

    def run(self, values: Mapping[str, Any], trial_request: TrialRequest) -> Outcome:
        self.file.write_text("done")
        return Outcome(schema.COMPLETED, None, 0)

    def to_json(self) -> dict[str, Any]:
        return {}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_node_whose_disk_is_full_refuses_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    # Making a trial sets free how many threads there are, which is not for the tests after it.
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    said = ray_task.make(Written(Path("/dev/full")), {}, "trial", "nowhere", None)
    assert isinstance(said, Refusal)
    assert said.exit_code == 5
    assert "No space left on device" in said.message


def test_this_machine_gives_its_kind_where_it_is_one_among_others(tmp_path: Path) -> None:
    (planned,), workload = planned_trials(rounds=1), Written(tmp_path / "file")
    begun: list[Trial] = []
    ((alone, _),) = HERE.run(workload, [planned], begun.append)
    ((among, _),) = Here(among_others=True).run(workload, [planned], begun.append)
    assert begun == [alone, among]
    assert (alone.node, alone.node_kind) == (None, None)
    assert (among.node, among.node_kind) == (platform.node(), kind_of_machine())


def test_twins_whose_firmware_keeps_more_memory_are_of_one_kind() -> None:
    gib = 2**30
    assert memory_kind(int(15.45 * gib)) == memory_kind(int(15.62 * gib)) == "16 GiB"
    assert memory_kind(8 * gib) == "8 GiB"


# --- which trial a free node takes ----------------------------------------------------------------


@given(
    rounds=st.integers(1, 5),
    settings=st.integers(1, 4),
    turns=st.lists(st.sampled_from([FAST, SLOW, OLD]), max_size=60),
)
def test_a_round_stays_with_one_kind_and_every_trial_is_handed_out_once(
    rounds: int, settings: int, turns: list[Node]
) -> None:
    nodes = [FAST, SLOW, OLD]
    work, _ = work_of(pool_of(*nodes), planned_trials(rounds, settings))
    taken = [
        (node.kind, planned.trial)
        for node in [*turns, *nodes * 20]
        if (planned := work._take(node)) is not None
    ]
    assert sorted(trial.index for _, trial in taken) == list(range(rounds * settings))
    for round_ in range(1, rounds + 1):
        assert len({kind for kind, trial in taken if trial.repeat == round_}) == 1


def test_the_rest_of_a_round_is_for_others_when_its_kind_is_gone() -> None:
    pool = pool_of(FAST, SLOW)
    work, _ = work_of(pool, planned_trials(1, 3))
    assert work._take(FAST) is not None
    assert work._take(SLOW) is None
    del pool.kind_of[FAST.id]
    assert work._take(SLOW) is not None


def test_a_round_that_was_begun_before_goes_on_with_its_kind() -> None:
    work, _ = work_of(pool_of(FAST, SLOW), planned_trials(2, 2, {1: "slow"}))
    taken = work._take(FAST)
    assert taken is not None
    assert taken.trial.repeat == 2


# --- what of a record travels ---------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(["a", "b", "c/d", "c/e"]), st.binary(max_size=200)))
def test_a_folder_arrives_as_it_was(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder, there = Path(temporary) / "one", Path(temporary) / "deep" / "two"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        unpack(pack(folder), there)
        arrived = {
            str(file.relative_to(there)): file.read_bytes()
            for file in there.rglob("*")
            if file.is_file()
        }
        assert arrived == files


def test_checkpoints_and_what_is_huge_are_left_behind_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    for name, size in {"run.json": 10, "steps.csv": 500, "checkpoint.pt": 20}.items():
        (folder / name).write_bytes(bytes(size))
    parcel = pack(folder, most_bytes=100)
    assert parcel.left_behind == ("checkpoint.pt", "steps.csv")
    unpack(parcel, tmp_path / "two")
    assert [file.name for file in (tmp_path / "two").iterdir()] == ["run.json"]


def test_a_parcel_that_is_damaged_leaves_no_folder_that_looks_whole(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="zip"):
        unpack(Parcel(b"no zip file"), tmp_path / "two")
    assert not (tmp_path / "two").exists()


# --- where a cluster is ---------------------------------------------------------------------------


def test_a_server_that_is_no_ray_cluster_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_cluster, "JOINED_WITHIN_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(MachineError, match=f"at {address}: .* joined within 1 s"):
            find_cluster(address)


@pytest.mark.parametrize("host", ["10.0.0.1", "head.local", "[::1]", "[fe80::1%eth0]"])
def test_an_address_is_a_host_and_a_port(host: str) -> None:
    assert host_and_port(f"{host}:6379") == (host.strip("[]"), 6379)


@pytest.mark.parametrize(
    "address",
    ["", ":", "host", "host:", ":1", "[]:1", "::1:1", "[::1]", "[host]:1", "host:६", "[:1:2"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(RequestError, match="wanted HOST:PORT or auto"):
        host_and_port(address)


@given(st.text())
def test_any_other_text_is_read_or_refused(text: str) -> None:
    try:
        host, port = host_and_port(text)
    except RequestError:
        return
    assert text.endswith(f":{port}") or text.rpartition(":")[2].lstrip("0") in (str(port), "")
    assert host
