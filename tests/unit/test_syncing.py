"""Making files durable: one by one, or all that a disk has to write."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.storage import files, fsync


@pytest.mark.parametrize("number", [1, 2 * fsync._SYNCFS_THRESHOLD])
def test_sync_takes_files_and_folders_that_are_there_and_those_that_are_gone(tmp_path: Path, number: int) -> None:
    places = [tmp_path / f"{turn}" for turn in range(number)]
    for place in places[1:]:
        place.write_bytes(b"x")
    fsync.DiskSync().sync([*map(str, places), str(tmp_path), str(tmp_path / "gone" / "file")])


def test_sync_of_many_files_syncs_each_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(fsync, "_sync_disk", synced.append)
    monkeypatch.setattr(fsync, "_LIBC", object())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    numbers = range(fsync._SYNCFS_THRESHOLD)
    fsync.DiskSync().sync([f"{tmp_path}/{name}/{turn}" for name in ("a", "b", "gone") for turn in numbers])
    assert len(synced) == 1
    assert synced[0].startswith(str(tmp_path))


def test_sync_of_many_files_without_a_way_to_sync_a_disk_syncs_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync, "_LIBC", None)
    fsync.DiskSync().sync([str(tmp_path / f"{turn}") for turn in range(fsync._SYNCFS_THRESHOLD)])


def test_read_plain_refuses_links_on_the_way_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, linked = tmp_path / "folder", tmp_path / "linked"
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    linked.symlink_to(folder)
    (folder / "link").symlink_to(folder / "file")
    disks = files.LocalFiles()
    for known in (files._is_opened_at, lambda descriptor, location: False):  # where the system does not tell
        monkeypatch.setattr(files, "_is_opened_at", known)
        assert disks.read_nofollow(str(folder / "file")).content == b"x"
        for location in (linked / "file", folder / "link"):
            with pytest.raises(InvalidInputError, match="link"):
                disks.read_nofollow(str(location))
    with pytest.raises(FileNotFoundError):
        disks.read_nofollow(str(folder / "gone"))


class Told:
    """A C library that is asked to begin to write: which files it was told of, open as they were."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def sync_file_range(self, descriptor: int, *_: object) -> int:
        self.files.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        return 0


def test_disk_is_told_of_new_files_while_they_are_written_and_of_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    monkeypatch.setattr(fsync, "_LIBC", told)
    monkeypatch.setattr(fsync, "WRITE_BACK_SECONDS", 0.001)
    (tmp_path / "old").touch()
    with fsync.DiskSync().writing_back(str(tmp_path)):
        for name in ("one", "two"):
            (tmp_path / name).touch()
        until = time.monotonic() + 60
        while len(told.files) < 2 and time.monotonic() < until:
            time.sleep(0.001)
    assert told.files == {"one", "two"}
    (tmp_path / "late").touch()
    time.sleep(0.01)
    assert "late" not in told.files


@pytest.mark.skipif(not hasattr(fsync._LIBC, "sync_file_range"), reason="only Linux can be told")
def test_disk_can_be_told_of_a_file_and_of_one_that_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10_000)
    assert fsync._start_write_back(str(file))
    assert not fsync._start_write_back(str(tmp_path / "none"))
