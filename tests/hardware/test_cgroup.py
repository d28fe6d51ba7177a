"""Control groups: on folders that look like them everywhere, on real ones where we have any."""

import os
import subprocess
import sys

import pytest
from polling import wait_until

from stepscope.errors import MachineError
from stepscope.hardware import cgroup, host

MIB = 2**20


def put(folder, **files):
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def handed_over(monkeypatch):
    """Take every folder that can be written for one that was handed over."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


# --- folders that look like control groups --------------------------------------------------------


def test_version_1_gets_its_limit_and_the_group_is_named_for_its_maker(tmp_path, handed_over):
    group = cgroup.make(512 * MIB, [tmp_path])
    assert (group.folder / "memory.limit_in_bytes").read_text() == str(512 * MIB)
    assert group.folder.parent == tmp_path
    assert f"-{os.getpid()}-" in group.folder.name


@pytest.mark.parametrize(("on", "then"), [("cpu", "+memory"), ("cpu memory", "cpu memory")])
def test_version_2_gets_its_limit_and_the_controller_that_it_needs(tmp_path, handed_over, on, then):
    put(tmp_path, cgroup__controllers="cpu memory", cgroup__subtree_control=on)
    group = cgroup.make(512 * MIB, [tmp_path])
    assert (group.folder / "memory.max").read_text() == str(512 * MIB)
    assert (tmp_path / "cgroup.subtree_control").read_text() == then


def test_the_next_group_is_tried_where_the_first_refuses(tmp_path, handed_over):
    group = cgroup.make(512 * MIB, [tmp_path / "gone", tmp_path])
    assert group.folder.parent == tmp_path


def test_root_makes_a_group_only_where_a_mark_says_that_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(MachineError, match="not delegated"):
        cgroup.make(512 * MIB, [tmp_path])
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "getxattr", lambda folder, mark: b"1")
    assert cgroup.make(512 * MIB, [tmp_path]).folder.is_dir()


def test_without_any_control_group_the_reason_says_so():
    with pytest.raises(MachineError, match="no control groups"):
        cgroup.make(512 * MIB, [])


def test_a_group_that_cannot_be_joined_is_taken_away_again(tmp_path, handed_over, monkeypatch):
    monkeypatch.setattr(cgroup, "_JOIN", "echo refused >&2; exit 125")
    # A control group's files go with it; those of a folder would keep it.
    monkeypatch.setattr(cgroup, "_write", lambda *args, **options: None)
    with pytest.raises(MachineError, match="refused"):
        cgroup.make(512 * MIB, [tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_groups_whose_maker_is_gone_are_taken_away_and_others_stay(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f"stepscope-{gone.pid}-ab", f"stepscope-{os.getpid()}-cd", "somebody-elses"):
        (tmp_path / name).mkdir()
    cgroup.remove_leftovers(tmp_path)
    left = {folder.name for folder in tmp_path.iterdir()}
    assert left == {f"stepscope-{os.getpid()}-cd", "somebody-elses"}


def test_a_command_joins_first_and_then_becomes_what_was_asked_for(tmp_path):
    group = cgroup.ControlGroup(tmp_path)
    asked = [sys.executable, "-c", "import os, sys; print(os.getpid(), sys.argv[1])", "a b'c"]
    process = subprocess.Popen(group.command(asked), stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate()
    assert out.split(" ", 1) == [str(process.pid), "a b'c\n"]
    assert (tmp_path / "cgroup.procs").read_text() == "0\n", "0 is whoever writes it"


@pytest.mark.parametrize(
    ("files", "used_bytes", "limit_bytes", "kills"),
    [
        (
            {
                "memory__current": "1000\n",
                "memory__stat": "anon 500\ninactive_file 300\nactive_file 100\n",
                "memory__max": "2000\n",
                "memory__events": "max 9\noom 2\noom_kill 1\noom_group_kill 0\n",
            },
            *(600, 2000, 1),
        ),
        (
            {
                "memory__usage_in_bytes": "1000\n",
                "memory__stat": "active_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n",
                "memory__limit_in_bytes": "9223372036854771712\n",
                "memory__oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            },
            *(600, None, 3),
        ),
        ({"memory__current": "1000\n", "memory__max": "max\n"}, 1000, None, None),
        ({}, None, None, None),
    ],
)
def test_what_a_group_tells_is_read_in_both_versions(
    tmp_path, files, used_bytes, limit_bytes, kills
):
    put(tmp_path, **files)
    assert cgroup.used_of(tmp_path) == used_bytes
    assert cgroup.limit_of(tmp_path) == limit_bytes
    assert cgroup.kills_of(tmp_path) == kills


def test_the_fullest_of_the_groups_around_us_is_the_one_that_counts(tmp_path, monkeypatch):
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for folder, limit, used in ((inner, 5000, 100), (outer, 3000, 2900)):
        folder.mkdir()
        put(folder, memory__max=str(limit), memory__current=str(used))
    monkeypatch.setattr(cgroup, "own_and_above", lambda: [inner, outer, tmp_path])
    assert cgroup.tightest(cgroup.limited()) == (3000, 100)
    assert host.cgroup_memory_limit_bytes() == 3000


def test_kernel_kills_are_counted_in_our_own_group_first(tmp_path, monkeypatch):
    put(tmp_path, memory__events="oom_kill 41\n")
    monkeypatch.setattr(cgroup, "own_and_above", lambda: [tmp_path])
    assert host.oom_kills() == 41


# --- a real one -----------------------------------------------------------------------------------


@pytest.fixture
def real_group():
    try:
        group = cgroup.make(64 * MIB)
    except MachineError as error:
        pytest.skip(f"no control group of our own here: {error}")
    yield group
    group.remove()


def test_the_kernel_kills_what_takes_more_than_the_group_may(real_group):
    greedy = [sys.executable, "-c", "x = bytearray(256 * 2**20); print(len(x))"]
    done = subprocess.run(real_group.command(greedy), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-9, b"")
    assert cgroup.kills_of(real_group.folder) == 1


def test_removing_a_group_ends_what_runs_in_it(real_group):
    sleeper = subprocess.Popen(real_group.command(["sleep", "600"]))
    joined = real_group.folder / "cgroup.procs"
    wait_until(lambda: str(sleeper.pid) in joined.read_text().split(), within_s=30)
    real_group.remove()
    assert sleeper.wait(timeout=30) == -9
    assert not real_group.folder.exists()
