"""What a folder lies on is found from its mount and its disk; reading it is bounded."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stepscope.hardware.disk import medium_under, read_some


def disk(root: Path, mount: Path, name: str, *, kind: str = "ext4", bus: str = "pci0") -> Path:
    """Make a tree in which a folder is mounted from the first partition of a disk."""
    folder = root / "sys/devices" / bus / "block" / name
    partition = folder / f"{name}p1"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("1\n")
    (folder / "queue").mkdir()
    (folder / "device").mkdir()
    numbers = root / "sys/dev/block"
    numbers.mkdir(parents=True)
    (numbers / "8:1").symlink_to(partition)
    mounted(root, f"30 1 8:1 / {mount} rw - {kind} /dev/{name}p1 rw\n")
    return folder


def mounted(root: Path, line: str) -> None:
    file = root / "proc/self/mountinfo"
    file.parent.mkdir(parents=True)
    file.write_text(f"22 1 0:5 / / rw - overlay overlay rw\n{line}")


@pytest.mark.parametrize(
    ("name", "file", "said", "kind", "place"),
    [
        ("nvme0n1", None, "", "NVMe SSD", {}),
        ("sda", "queue/rotational", "0\n", "SSD", {}),
        ("sda", "queue/rotational", "1\n", "HDD", {}),
        ("sdb", "queue/rotational", "1\n", "HDD", {"bus": "pci0/usb2/2-1"}),
        ("sda", "queue/rotational", "1\n", "HDD", {"kind": "fuseblk"}),  # no network
        ("mmcblk0", "device/type", "SD\n", "SD card", {}),
        ("mmcblk0", "device/type", "MMC\n", "eMMC", {}),
        ("vda", None, "", "virtual disk", {}),
    ],
)
def test_a_disk_is_known_by_its_kind(tmp_path, name, file, said, kind, place):
    data = tmp_path / "data"
    data.mkdir()
    folder = disk(tmp_path / "root", data, name, **place)
    if file is not None:
        (folder / file).write_text(said)
    found = medium_under(data, tmp_path / "root").value
    assert (found.kind, found.device) == (kind, name)
    assert (found.file_system, found.over_usb) == (place.get("kind", "ext4"), "bus" in place)


@pytest.mark.parametrize(("kind", "medium"), [("tmpfs", "memory"), ("nfs4", "network")])
def test_a_folder_may_lie_on_no_disk(tmp_path, kind, medium):
    data = tmp_path / "some data"
    data.mkdir()
    shown = str(data).replace(" ", "\\040")
    mounted(tmp_path / "root", f"30 1 0:9 / {shown} rw - {kind} server:/x rw\n")
    found = medium_under(data / "not" / "yet", tmp_path / "root").value
    assert found.kind == medium


def test_a_disk_that_is_hidden_or_not_listed_has_a_reason(tmp_path):
    root = tmp_path / "root"
    assert "mountinfo" in (medium_under(tmp_path, root).reason or "")
    mounted(root, "")
    assert "overlay hides its disk" in (medium_under(tmp_path, root).reason or "")


def test_a_mount_whose_number_is_of_no_device_is_found_by_its_source(tmp_path):
    root = tmp_path / "root"
    folder = disk(root, tmp_path, "nvme0n1")
    (root / "sys/class/block").mkdir(parents=True)
    (root / "sys/class/block/nvme0n1p1").symlink_to(folder / "nvme0n1p1")
    (root / "dev/mapper").mkdir(parents=True)
    (root / "dev/nvme0n1p1").touch()
    (root / "dev/mapper/data").symlink_to("../nvme0n1p1")
    for source in ("/dev/nvme0n1p1", "/dev/mapper/data"):
        line = f"30 1 0:44 /@ {tmp_path} rw - btrfs {source} rw\n"
        (root / "proc/self/mountinfo").write_text(line)
        found = medium_under(tmp_path, root).value
        assert (found.kind, found.device) == ("NVMe SSD", "nvme0n1")


def test_links_in_a_circle_lead_to_what_is_above_them(tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    assert medium_under(tmp_path / "one" / "data", Path("/")).value is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not look")
def test_where_one_may_not_look_there_is_a_reason_and_no_fault():
    with TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        for name, mode in (("closed", 0o700), ("listed", 0o744)):
            (folder / name).mkdir()
            (folder / name / "file").write_bytes(b"x")
            (folder / name).chmod(mode)
        os.seteuid(65534)
        try:
            assert medium_under(folder / "closed/data", Path("/")).value is not None
            assert "no file to read" in (read_some(folder / "listed").reason or "")
        finally:
            os.seteuid(0)


@pytest.mark.parametrize("limits", [{"at_most_s": 0}, {"at_most_bytes": 1 << 20}])
def test_no_more_of_a_file_is_read_than_was_allowed(tmp_path, limits):
    (tmp_path / "large").write_bytes(os.urandom(3 << 20))
    test = read_some(tmp_path, **limits).value
    assert test.bytes == 1 << 20
    assert test.bytes_per_s > 0


def test_many_small_files_are_read_up_to_a_number(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(b"x" * 100)
    test = read_some(tmp_path, at_most_files=7).value
    assert (test.files, test.bytes) == (7, 700)


@pytest.mark.parametrize("made", [[], ["empty"]])
def test_a_folder_with_nothing_to_read_has_a_reason(tmp_path, made):
    for name in made:
        (tmp_path / name).touch()
    reading = read_some(tmp_path)
    assert reading.value is None
    assert str(tmp_path) in (reading.reason or "")
