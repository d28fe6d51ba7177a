"""The live page over HTTP: what it shows of good and bad folders, and how it starts and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from complete_run import EVIL, add_steps, unclosed, write_sweep_of_runs, write_whole_run
from serve_client import Served, Start
from written_runs import write_run

from stepscope.records import schema


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as people have them: runs, a sweep, and what went wrong."""
    folder = tmp_path_factory.mktemp("serve") / "runs"
    write_whole_run(folder / "good", "good")
    write_whole_run(folder / "evil <b> #1?", EVIL, spec={"data": EVIL})
    write_whole_run(folder / "deeper" / "still" / "run", "deep")
    write_sweep_of_runs(folder / "sweep", b8=(2.0, 2.1), b32=(1.0,))
    (folder / "latest").symlink_to("good")
    cut = write_whole_run(folder / "cut", "cut")
    with (cut / schema.STEPS).open("a") as file:
        file.write("1,2,3\n1,2")
    write_run(folder / "newer")
    (folder / "newer" / schema.RUN).write_text('{"schema": 99, "name": "newer"}')
    (folder / "half").mkdir()
    (folder / "half" / schema.STEPS).write_text("epoch,st")
    for broken in ("broken", "broken <img>"):
        (folder / broken).mkdir()
        (folder / broken / schema.RUN).write_text('{"schema": 1, "na')
    (folder / "odd").mkdir()
    odd = {"schema": 1, "kind": "run", "summary": "none", "spec": [1], "started_unix_s": "x"}
    (folder / "odd" / schema.RUN).write_text(json.dumps({**odd, "name": "\ud800"}))
    return folder


@pytest.fixture(scope="module")
def served(serve: Start, runs: Path) -> Served:
    return serve(runs)


def test_the_list_has_state_kind_and_figures_of_every_record(served):
    text = served.ask("/").text
    for name in ("good", "deeper/still/run", "sweep", "cut", "newer", "half", "broken", "odd"):
        assert f'id="/runs/{name}"' in text
    assert text.count('id="/runs/') == 10  # `latest` is one of them
    assert "lenet on shapes" in text
    assert "3 of 3 trials" in text
    assert "newer stepscope" in text
    assert "400.0 MiB" in text


def test_a_run_is_shown_by_its_folder_and_by_a_link_to_it(served):
    for path in ("/runs/good", "/runs/latest"):
        reply = served.ask(path)
        assert reply.status == 200
        assert "one step, 10 ms" in reply.text
    assert len(served.news("/runs/good")["charts"]) > 8


def test_a_sweep_leads_to_its_trials(served):
    assert 'href="/runs/sweep/trials/000"' in served.ask("/runs/sweep").text
    assert "one step, " in served.ask("/runs/sweep/trials/000").text


def test_chosen_runs_are_compared(served):
    text = served.ask("/compare?run=good&run=deeper/still/run").text
    assert "Side by side" in text
    assert "Choose two or more" in served.ask("/compare?run=good&run=good").text
    assert "Choose two or more" in served.ask("/compare").text
    assert served.ask("/compare?run=good&run=gone").status == 404


def test_what_people_named_is_text(served):
    assert "&lt;img&gt;" in served.ask("/runs/broken%20%3Cimg%3E").text
    assert "<img" not in served.ask("/runs/broken%20%3Cimg%3E").text
    for path in ("/", "/runs/evil%20%3Cb%3E%20%231%3F"):
        text = served.ask(path).text
        assert "&lt;script&gt;document.title" in text
        assert "<script>document.title" not in text
        assert "<img" not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut", "unreadable line"),
        ("newer", "newer stepscope"),
        ("broken", "cannot read"),
        ("odd", "Cannot show this run"),
    ],
)
def test_a_bad_folder_is_shown_as_such(served, name, words):
    reply = served.ask(f"/runs/{name}")
    assert reply.status == 200
    assert words in reply.text
    assert served.ask(f"/new/runs/{name}").status == 200


def test_a_folder_without_a_record_is_not_there(served):
    assert served.ask("/runs/half").status == 404
    assert served.ask("/runs/nothing").status == 404
    assert served.ask("/nothing").status == 404
    assert served.ask("/assets/nothing.js").status == 404


def test_what_was_seen_already_is_not_sent_again(served):
    seen = served.news("/runs/good")["version"]
    assert served.ask(f"/new/runs/good?seen={seen}").status == 204
    assert served.ask("/new/runs/good?seen=other").status == 200
    mark = served.ask("/assets/vega.js").headers["etag"]
    assert served.ask("/assets/vega.js", headers={"If-None-Match": mark}).status == 304


def test_a_run_that_goes_on_has_news(served, runs):
    run = unclosed(write_whole_run(runs / "going", "going"))
    before = served.news("/runs/going")
    assert before["active"]
    add_steps(run)
    after = served.news("/runs/going")
    assert after["version"] != before["version"]
    assert "40 steps" in before["body"]
    assert "60 steps" in after["body"]


def test_a_large_run_is_read_apart_and_goes_on_to_grow(served, runs):
    run = write_whole_run(runs / "large", "large")
    closed = (run / schema.RUN).read_text()
    add_steps(unclosed(run), times=300)
    served.wait_for("/runs/large", "6,040 steps")
    add_steps(run, times=300)
    served.wait_for("/runs/large", "12,040 steps")
    (run / schema.RUN).write_text(closed)
    served.wait_for("/runs/large", "completed")
    assert not served.news("/runs/large")["active"]


def test_a_silent_run_is_asked_after(served, runs):
    run = write_run(runs / "silent", status="running")
    an_hour_ago = time.time() - 3600
    os.utime(run / schema.RUN, (an_hour_ago, an_hour_ago))
    assert "probably killed" in served.ask("/").text


def test_no_runs_at_all_says_what_to_do(serve, tmp_path):
    text = serve(tmp_path).ask("/").text
    assert f"stepscope run --out {tmp_path}" in text


def test_a_taken_port_and_a_run_in_place_of_a_folder_are_refused(stepscope, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = stepscope("serve", tmp_path, "--port", port)
    assert done.is_refused(2, f"cannot listen on port {port}", "--port 0")
    done = stepscope("serve", write_run(tmp_path / "run"))
    assert done.is_refused(2, f"stepscope serve {tmp_path}")


def test_ctrl_c_ends_it_at_once_although_somebody_looks_on(serve, runs, tmp_path):
    server = serve(runs)
    with socket.create_connection(("127.0.0.1", int(server.url.split(":")[-1][:-1]))) as kept:
        kept.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        kept.recv(100)
        server.process.send_signal(signal.SIGINT)
        out, err = server.process.communicate(timeout=20)
    assert server.process.returncode == 130
    assert "Traceback" not in err
    assert out == ""  # after the one object


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(tmp_path, package):
    code = (
        f"import sys; sys.modules[{package!r}] = None; from stepscope.cli.main import main; "
        "main(['serve', '.'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert f"needs {package}" in done.stderr
    assert "stepscope[serve]" in done.stderr
