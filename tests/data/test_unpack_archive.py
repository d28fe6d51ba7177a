"""Nothing leaves an archive but what was expected, and nothing appears half done."""

from __future__ import annotations

import errno
import gzip
import os
import tarfile
from pathlib import Path

import pytest
from tar_files import tar_gz

from stepscope.data import unpack_archive
from stepscope.data.unpack_archive import extract
from stepscope.errors import DataError, MachineError

NAMES = {"a.bin", "b.bin"}


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def unpack(path: Path, target: Path, limit_bytes: int = 1 << 20) -> None:
    extract(path, target, prefix="box", names=NAMES, limit_bytes=limit_bytes)


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


class TestExtract:
    def test_expected_files_are_unpacked_and_others_passed_over(self, tmp_path):
        packed = tar_gz(
            tmp_path / "x.tar.gz",
            special("box", tarfile.DIRTYPE),
            ("box/a.bin", b"one"),
            ("box/readme.html", b"not asked for"),
            ("box/deeper/b.bin", b"not this one"),
            ("./box/b.bin", b"two"),
        )
        unpack(packed, tmp_path / "out")
        assert names_in(tmp_path / "out") == ["a.bin", "b.bin"]
        assert (tmp_path / "out/b.bin").read_bytes() == b"two"
        assert names_in(tmp_path) == ["out", "x.tar.gz"]

    def test_a_folder_that_is_there_is_left_alone(self, tmp_path):
        (tmp_path / "out").mkdir()
        unpack(tar_gz(tmp_path / "x.tar.gz", ("box/a.bin", b"one")), tmp_path / "out")
        assert names_in(tmp_path / "out") == []

    @pytest.mark.parametrize(
        "entry",
        [
            ("/etc/a.bin", b"x"),
            ("../a.bin", b"x"),
            ("box/../../a.bin", b"x"),
            ("other/a.bin", b"x"),
            special("box/a.bin", tarfile.SYMTYPE, "/etc/passwd"),
            special("box/a.bin", tarfile.LNKTYPE, "box/b.bin"),
            special("box/a.bin", tarfile.FIFOTYPE),
        ],
        ids=lambda one: one[0] if isinstance(one, tuple) else f"{one.name}-{one.type!r}",
    )
    def test_a_strange_entry_is_not_unpacked(self, tmp_path, entry):
        packed = tar_gz(tmp_path / "x.tar.gz", ("box/b.bin", b"fine"), entry)
        unpack(packed, tmp_path / "out")
        assert names_in(tmp_path / "out") == ["b.bin"]
        assert names_in(tmp_path) == ["out", "x.tar.gz"]

    def test_an_archive_that_unpacks_to_too_much_is_stopped(self, tmp_path):
        packed = tar_gz(tmp_path / "x.tar.gz", ("box/a.bin", bytes(5_000_000)))
        assert packed.stat().st_size < 10_000
        with pytest.raises(DataError, match="unpacks to more bytes than expected"):
            unpack(packed, tmp_path / "out")
        assert names_in(tmp_path) == ["x.tar.gz"]

    def test_a_cut_off_or_altered_archive_is_an_error(self, tmp_path):
        whole = tar_gz(tmp_path / "x", ("box/a.bin", os.urandom(3000)), ("box/b.bin", b"two" * 99))
        content = whole.read_bytes()
        flipped = content[:1500] + bytes([content[1500] ^ 1]) + content[1501:]
        broken = tmp_path / "broken.tar.gz"
        for damaged in (*(content[:length] for length in range(0, len(content), 97)), flipped):
            broken.write_bytes(damaged)
            with pytest.raises(DataError, match=r"broken\.tar\.gz is damaged or incomplete"):
                unpack(broken, tmp_path / "out")
        assert names_in(tmp_path) == ["broken.tar.gz", "x"]

    @pytest.mark.parametrize(
        "content", [b"", b"<html>not found</html>", gzip.compress(b"no tar", mtime=0)]
    )
    def test_what_is_no_archive_is_an_error(self, tmp_path, content):
        (tmp_path / "x.tar.gz").write_bytes(content)
        with pytest.raises(DataError, match="damaged or incomplete"):
            unpack(tmp_path / "x.tar.gz", tmp_path / "out")

    def test_a_missing_archive_is_named(self, tmp_path):
        with pytest.raises(DataError, match=r"cannot read .*x\.tar\.gz: No such file"):
            unpack(tmp_path / "x.tar.gz", tmp_path / "out")

    def test_a_full_disk_is_the_machines_fault(self, tmp_path, monkeypatch):
        def full(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(unpack_archive.shutil, "copyfileobj", full)
        packed = tar_gz(tmp_path / "x.tar.gz", ("box/a.bin", b"one"))
        with pytest.raises(MachineError, match="No space left on device"):
            unpack(packed, tmp_path / "out")
        assert names_in(tmp_path) == ["x.tar.gz"]
