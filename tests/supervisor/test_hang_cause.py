"""Stacks are read as `faulthandler` writes them, and say what a thread waits for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from stepscope.supervisor.hang_cause import find_cause, parse_stacks, thread_waits_for

LIB = "/usr/lib/python3.11"
TORCH = "site-packages/torch"


def dump(*frames: Sequence[str]) -> str:
    lines = [f'  File "{file}", line 1 in {function}' for file, function in frames]
    return "\n".join(["Current thread 0x00007febdda13b80 (most recent call first):", *lines, ""])


@pytest.mark.parametrize(
    ("frames", "waits_for"),
    [
        ("threading.py:wait queue.py:get", "queue"),
        ("threading.py:wait", "condition"),
        ("threading.py:_wait_for_tstate_lock threading.py:join", "thread"),
        ("subprocess.py:_try_wait subprocess.py:wait", "child process"),
        ("multiprocessing/connection.py:_recv", "pipe"),
        ("socket.py:readinto", "socket"),
        (f"{TORCH}/distributed/distributed_c10d.py:barrier", "collective"),
        (
            "selectors.py:select multiprocessing/queues.py:get "
            f"{TORCH}/utils/data/dataloader.py:_try_get_data",
            "loader worker",
        ),
        (f"multiprocessing/queues.py:get {TORCH}/utils/data/_utils/worker.py:_worker_loop", "work"),
    ],
)
def test_library_code_that_waits_is_known(frames: str, waits_for: str) -> None:
    library = [f"{LIB}/{frame}".rsplit(":", 1) for frame in frames.split()]
    [thread] = parse_stacks(dump(*library, ("/home/me/train.py", "main")))
    assert thread_waits_for(thread) == waits_for


def test_a_queue_that_nobody_fills_is_told_from_one_that_another_thread_may() -> None:
    [thread] = parse_stacks(dump(("/home/me/train.py", "main")))
    trainer = {"waits_for": "queue", "threads": [thread], "kernel": []}
    waits = "The trainer waits at train.py:1 for a queue"
    assert find_cause([trainer])[0] == f"{waits}, and no other thread is left to use it."
    assert find_cause([{**trainer, "threads": [thread] * 2}])[0] == f"{waits}."


@pytest.mark.parametrize(
    ("code", "waits_for"),
    [
        ("with self.lock:", "lock"),
        ("lock.acquire()", "lock"),
        ("time.sleep(5)", "sleep"),
        ("item = my_queue.get()", "queue"),
        ("event.wait()", "condition"),
        ("connection.recv(4096)", "socket"),
        ("x = x + 1", None),
    ],
)
def test_a_call_into_c_is_known_by_its_text(
    tmp_path: Path, code: str, waits_for: str | None
) -> None:
    script = tmp_path / "train.py"
    script.write_text(code + "\n")
    [thread] = parse_stacks(dump((str(script), "main")))
    assert thread["frames"][0]["code"] == code
    assert thread_waits_for(thread) == waits_for


def test_strings_are_left_out_of_the_record(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("login('hunter2')\n")
    [thread] = parse_stacks(dump((str(script), "main")))
    assert thread["frames"][0]["code"] == "login('...')"


def test_a_forked_worker_has_no_frames_of_the_trainer() -> None:
    worker = (f"{LIB}/{TORCH}/utils/data/_utils/worker.py", "_worker_loop")
    [thread] = parse_stacks(
        dump(("/home/me/data.py", "__getitem__"), worker, ("/home/me/t.py", "m"))
    )
    assert [frame["function"] for frame in thread["frames"]] == ["__getitem__", "_worker_loop"]


def test_names_of_threads_are_read_where_python_writes_them() -> None:
    named = (
        'Thread 0x00007febb910f6c0 [reader] (most recent call first):\n  File "a.py", line 1 in f\n'
    )
    reader, main = parse_stacks(named + "\n" + dump(("/home/me/train.py", "main")))
    assert (reader["name"], main["name"]) == ("reader", "main")


def test_text_that_is_no_stack_is_ignored() -> None:
    assert parse_stacks("signal 59 of 1 on 7\n  <no Python frame>\n") == []
