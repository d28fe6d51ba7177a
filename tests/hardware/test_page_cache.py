"""The page cache: files of our own, made cold and read again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stepscope.hardware import page_cache
from stepscope.hardware.page_cache import make_cold

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of its cache")

PAGES = 64
SIZE_BYTES = PAGES * 4096 + 1  # and one page more for a single byte


def resident_share(files: list[Path]) -> float | None:
    """Look up, without making anything cold, what share of the files is in memory."""
    return page_cache._residency(files)[0]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("one", "two")]
    for path in made:
        path.write_bytes(os.urandom(SIZE_BYTES))
    make_sure_it_can_be_cold(made[0])
    return made


def make_sure_it_can_be_cold(path: Path) -> None:
    """Skip where temporary files lie in memory: there is nowhere else to read them from."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(point, kind) for point, kind in mounts if path.is_relative_to(point)]
    if max(inside, key=lambda mount: len(mount[0]))[1] in ("tmpfs", "ramfs"):
        pytest.skip("temporary files lie in memory here")


@pytest.fixture
def not_permitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Have a machine whose cache cannot be dropped as a whole."""
    nowhere = tmp_path / "drop_caches"
    monkeypatch.setattr(page_cache, "DROP_CACHES", nowhere)
    return nowhere


def test_pages_that_are_advised_out_are_gone_and_come_back_by_reading(files, not_permitted):
    assert resident_share(files) == 1.0, "they were just written"
    cold = make_cold(files)
    assert (cold["how"], cold["files"], cold["bytes"]) == ("advised", 2, 2 * SIZE_BYTES)
    assert cold["cold_share"] == 1.0, "what was not yet on the disk was brought there first"
    assert str(not_permitted) in cold["reason"]
    files[0].read_bytes()
    assert resident_share(files) == pytest.approx(0.5)
    files[1].read_bytes()
    assert resident_share(files) == 1.0


@pytest.mark.skipif(not os.access(page_cache.DROP_CACHES, os.W_OK), reason="not permitted here")
def test_where_it_is_permitted_the_whole_cache_is_dropped(files):
    cold = make_cold(files)
    assert (cold["how"], cold["reason"]) == ("dropped", None)
    assert cold["cold_share"] == 1.0
    files[0].read_bytes()
    assert resident_share(files) == pytest.approx(0.5)


def test_a_part_of_a_file_is_a_share_of_its_pages(files, not_permitted):
    make_cold(files)
    descriptor = os.open(files[0], os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # without reading ahead
        os.pread(descriptor, 4096, 8 * 4096)
    finally:
        os.close(descriptor)
    share = resident_share(files[:1])
    assert 0 < share < 1


def test_somebody_else_s_file_is_not_taken_for_resident(files, monkeypatch, not_permitted):
    monkeypatch.setattr(os, "geteuid", lambda: files[0].stat().st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *asked: False)
    assert resident_share(files) is None
    cold = make_cold(files)
    assert (cold["how"], cold["cold_share"]) == ("advised", None)
    assert "only for files that you can write" in str(cold["reason"])


@pytest.mark.parametrize("size", [0, None])
def test_no_page_is_no_share(tmp_path, not_permitted, size):
    empty = tmp_path / "empty"
    empty.touch()
    cold = make_cold([] if size is None else [empty])
    assert cold["cold_share"] is None
    assert "empty" in str(cold["reason"])


def test_files_in_memory_stay_there_and_the_share_says_so(not_permitted):
    shared = Path("/dev/shm") / f"stepscope-test-{os.getpid()}"
    if not shared.parent.is_dir():
        pytest.skip("no /dev/shm here")
    try:
        shared.write_bytes(b"x" * SIZE_BYTES)
        assert make_cold([shared])["cold_share"] == 0.0
    finally:
        shared.unlink(missing_ok=True)


def test_what_takes_no_advice_is_named(not_permitted):
    cold = make_cold([Path("/proc/self/status")])
    assert cold["how"] is None
    assert "/proc/self/status cannot be evicted" in str(cold["reason"])
