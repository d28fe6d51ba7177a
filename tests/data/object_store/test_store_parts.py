"""The parts of reading from a bucket that need no server: addresses, manifests, shards, figures."""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.data.object_store.aws_profile import configured_endpoint, profile_settings
from stepscope.data.object_store.bucket import folder_name
from stepscope.data.object_store.manifest import Manifest, ManifestEntry, read_manifest
from stepscope.data.object_store.request_latency import RequestTimes, summarize
from stepscope.data.object_store.store_client import RequestStats
from stepscope.data.object_store.store_url import parse_address
from stepscope.data.object_store.stored_samples import (
    decode_image,
    encode_image,
    pack_shard,
    unpack_object,
)
from stepscope.errors import DataError, RequestError

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)
ENTRIES = st.builds(
    ManifestEntry,
    key=WORDS,
    size_bytes=st.integers(0, 2**40),
    sha256=WORDS,
    label=st.integers(0, 999),
) | st.builds(
    ManifestEntry, key=WORDS, size_bytes=st.just(1), sha256=WORDS, samples=st.integers(1, 1000)
)


@given(bucket=WORDS, prefix=st.lists(WORDS, max_size=3))
def test_an_address_is_its_bucket_and_its_prefix(bucket, prefix):
    address = parse_address("/".join([f"s3://{bucket}", *prefix]) + "/")
    assert (address.bucket, address.prefix) == (bucket, "/".join(prefix))


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///prefix", "s3://user:word@b/x", "s3://b/x?key=word", "ftp://b/x"]
)
def test_a_url_that_names_no_bucket_or_holds_a_secret_is_refused(url):
    with pytest.raises(RequestError, match="source") as refused:
        parse_address(url)
    assert "word@" not in str(refused.value)
    assert "=word" not in str(refused.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "http://key:word@host"])
def test_an_endpoint_is_a_plain_web_address(endpoint):
    with pytest.raises(RequestError, match="endpoint_url") as refused:
        parse_address("s3://b/x", endpoint)
    assert "word" not in str(refused.value).replace("password", "")


def test_downloads_of_two_addresses_never_share_a_folder():
    urls = ("s3://b/a-b", "s3://b/a/b", "s3://b-a/b")
    assert len({folder_name(parse_address(url)) for url in urls}) == 3


@given(st.lists(ENTRIES, max_size=8, unique_by=lambda entry: entry.key), st.integers(0, 8))
def test_a_manifest_reads_back_as_it_was(entries, of_train):
    train, test = tuple(entries[:of_train]), tuple(entries[of_train:])
    manifest = Manifest("cifar10", "objects", train, test)
    assert read_manifest(manifest.to_json(), "it") == manifest


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": "other"}', '{"format": "stepscope-samples-1", "layout": "x"}'],
)
def test_what_is_no_manifest_is_said_to_be_none(content):
    with pytest.raises(DataError, match="is not a valid manifest"):
        read_manifest(content, "it")


@pytest.mark.parametrize("key", ["../x", "/etc/x", "a/../../x"])
def test_a_key_that_leads_out_of_the_folder_is_refused(key):
    manifest = Manifest("d", "objects", (ManifestEntry(key, 1, "x", label=0),), ())
    with pytest.raises(DataError, match="leads out"):
        read_manifest(manifest.to_json(), "it")


def test_the_first_samples_are_those_of_the_first_shards():
    shards = tuple(ManifestEntry(str(number), 1, "x", samples=1000) for number in range(3))
    manifest = Manifest("d", "shards", shards, ())
    assert [len(manifest.first("train", n)) for n in (1, 1000, 1001, 3000)] == [1, 1, 2, 3]


def some_images(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def shard_of(samples: int) -> ManifestEntry:
    return ManifestEntry("it", 1, "x", samples=samples)


def test_an_image_comes_back_to_the_bit():
    image = some_images(1)[0]
    np.testing.assert_array_equal(decode_image(encode_image(image), "it"), image)


def test_a_shard_is_read_by_keys_and_not_by_the_order_of_its_members():
    images, labels = some_images(20), np.arange(20) % 10
    packed = pack_shard(1000, images, labels)
    with tarfile.open(fileobj=io.BytesIO(packed)) as shard:
        members = [(member, shard.extractfile(member)) for member in shard]
        assert [member.name for member, _ in members[:2]] == ["001000.png", "001000.cls"]
        shuffled = io.BytesIO()
        with tarfile.open(fileobj=shuffled, mode="w") as other:
            for place in np.random.default_rng(0).permutation(len(members)):
                other.addfile(*members[place])
    found = unpack_object(shuffled.getvalue(), shard_of(20))
    np.testing.assert_array_equal(np.stack([found.image(i) for i in range(20)]), images)
    np.testing.assert_array_equal(found.labels, labels)


@pytest.mark.parametrize("kept", [0, 100, 700, 2000, 9000])
def test_a_shard_cut_short_is_named(kept):
    packed = pack_shard(0, some_images(4), np.zeros(4, dtype=np.int64))
    with pytest.raises(DataError, match="shard it"):
        unpack_object(packed[:kept], shard_of(4))


def test_a_sample_without_its_label_is_named():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as shard:
        shard.addfile(tarfile.TarInfo("000000.png"), io.BytesIO())
    with pytest.raises(DataError, match=r"cannot read shard it .*000000\.cls"):
        unpack_object(file.getvalue(), shard_of(1))


@given(times_s=st.lists(st.floats(1e-4, 100), min_size=1, max_size=50))
def test_percentiles_of_requests_are_right_to_a_hundredth(times_s):
    times = RequestTimes(workers=1)
    times.add(RequestStats(times_s=times_s[::2], bytes=7))
    times.add(RequestStats(times_s=times_s[1::2], bytes=5))
    found = summarize([times.counts()])
    assert found is not None
    assert (found["count"], found["bytes"], found["retries"]) == (len(times_s), 12, 0)
    exact = sorted(times_s)
    assert found["max_s"] == pytest.approx(exact[-1], rel=0.011)
    assert found["p50_s"] == pytest.approx(exact[(len(exact) + 1) // 2 - 1], rel=0.011)


def test_without_requests_there_are_no_figures():
    assert summarize([RequestTimes().counts()]) is None
    assert summarize([]) is None


def listed(**changes):
    entry = {"key": "train/1.png", "bytes": 7, "sha256": "ab", "label": 1, **changes}
    return {name: value for name, value in entry.items() if value != "left out"}


def manifest_of(*entries):
    about = {"format": "stepscope-samples-1", "data": "cifar10", "layout": "objects"}
    return json.dumps({**about, "train": entries, "test": []})


BAD_ENTRIES = {
    "NUL": {"key": "a\0b"},
    "a surrogate": {"key": "a\udc80"},
    "too long": {"key": "k" * 5000},
    "an empty name": {"key": "a//b"},
    "no text": {"key": None},
    "no checksum": {"sha256": None},
    "no size": {"bytes": None},
    "a size of text": {"bytes": "7"},
    "a label that is too large": {"label": 2**64},
    "a label that is none": {"label": True},
    "a negative label": {"label": -1},
    "neither label nor samples": {"label": None},
}


@pytest.mark.parametrize("bad", BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_an_entry_that_cannot_be_read_makes_a_manifest_invalid(bad):
    assert read_manifest(manifest_of(listed()), "it").count("train") == 1
    with pytest.raises(DataError, match="is not a valid manifest"):
        read_manifest(manifest_of(listed(**bad)), "it")


def test_an_endless_number_makes_a_manifest_invalid():
    with pytest.raises(DataError, match="wanted a count, found inf"):
        read_manifest(manifest_of(listed(bytes=7)).replace('"bytes": 7', '"bytes": 1e400'), "it")


def test_an_object_has_one_label():
    assert read_manifest(manifest_of(listed(), listed()), "it").count("train") == 2
    with pytest.raises(DataError, match=r"'train/1\.png' has the labels 1 and 2"):
        read_manifest(manifest_of(listed(), listed(label=2)), "it")


def test_a_picture_that_is_too_large_to_decode_is_named():
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)  # 3.6 billion pixels
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header
    body = b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", zlib.crc32(chunk[4:]))
    with pytest.raises(DataError, match="bomb is not a PNG image"):
        decode_image(body, "bomb")


CONFIG = """
[default]
endpoint_url = http://of-the-profile
[profile lab]
services = here
endpoint_url = http://of-the-profile
[services here]
s3 =
  signature_version = s3v4
  endpoint_url = http://of-the-service
[profile role]
role_arn = arn:aws:iam::1:role/x
"""


def test_the_endpoint_is_the_one_that_the_aws_tools_would_use(tmp_path, monkeypatch):
    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in [name for name in os.environ if name.startswith("AWS_E") or "PROFILE" in name]:
        monkeypatch.delenv(name)
    assert configured_endpoint() == "http://of-the-profile"
    monkeypatch.setenv("AWS_DEFAULT_PROFILE", "lab")
    assert configured_endpoint() == "http://of-the-service"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://of-all-services")
    assert configured_endpoint() == "http://of-all-services"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://of-s3")
    assert configured_endpoint() == "http://of-s3"


def test_a_profile_that_only_the_aws_tools_can_use_is_named(tmp_path, monkeypatch):
    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "role")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(DataError, match="by role_arn, which only the AWS tools"):
        profile_settings()


def test_a_profile_that_cannot_be_read_is_not_quoted(tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text("aws_secret_access_key = word\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with pytest.raises(DataError, match="cannot read") as refused:
        profile_settings()
    assert "word" not in str(refused.value)


def test_credentials_of_the_environment_win_over_a_profile(tmp_path, monkeypatch):
    content = "[default]\naws_access_key_id = a\naws_secret_access_key = b\nregion = eu-de\n"
    (tmp_path / "credentials").write_text(content)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    assert profile_settings() == {"region": "eu-de"}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert profile_settings()["aws_secret_access_key"] == "b"
