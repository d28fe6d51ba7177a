"""A file or folder is written completely or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.errors import MachineError, RequestError
from stepscope.files import atomic_folder, write_atomically


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


class TestWriting:
    def test_a_file_is_written_with_its_folder(self, tmp_path):
        write_atomically(tmp_path / "new/file", [b"one", b"two"])
        assert (tmp_path / "new/file").read_bytes() == b"onetwo"
        assert names_in(tmp_path / "new") == ["file"]
        plain = tmp_path / "plain"
        plain.touch()
        assert (tmp_path / "new/file").stat().st_mode == plain.stat().st_mode

    def test_an_interrupted_write_leaves_the_old_file(self, tmp_path):
        def pieces() -> Iterator[bytes]:
            yield b"half"
            raise KeyboardInterrupt

        (tmp_path / "file").write_bytes(b"old")
        with pytest.raises(KeyboardInterrupt):
            write_atomically(tmp_path / "file", pieces())
        assert (tmp_path / "file").read_bytes() == b"old"
        assert names_in(tmp_path) == ["file"]

    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (errno.ENOSPC, MachineError),
            *((number, RequestError) for number in (errno.EACCES, errno.EPERM, errno.EROFS)),
        ],
    )
    def test_a_failed_write_says_whose_fault_it_is(self, tmp_path, number, kind):
        def pieces() -> Iterator[bytes]:
            raise OSError(number, os.strerror(number))
            yield b""

        with pytest.raises(kind, match=os.strerror(number)):
            write_atomically(tmp_path / "file", pieces())
        assert names_in(tmp_path) == []

    def test_a_folder_made_by_another_in_the_meantime_stays(self, tmp_path):
        with atomic_folder(tmp_path / "out") as temporary:
            (temporary / "mine").touch()
            (tmp_path / "out").mkdir()
            (tmp_path / "out/theirs").touch()
        assert names_in(tmp_path / "out") == ["theirs"]
        assert names_in(tmp_path) == ["out"]

    def test_a_name_that_is_taken_by_a_file_is_an_error(self, tmp_path):
        (tmp_path / "out").touch()
        with (
            pytest.raises(RequestError, match="cannot write"),
            atomic_folder(tmp_path / "out"),
        ):
            pass
        assert names_in(tmp_path) == ["out"]
