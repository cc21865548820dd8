"""Fsync of files and folders, one by one or by whole file systems, and reads that follow no links."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.storage import files, fsync


@pytest.mark.parametrize("number", [1, 2 * fsync._SYNCFS_THRESHOLD])
def test_sync_takes_existing_and_missing_files_and_folders(tmp_path: Path, number: int) -> None:
    paths = [tmp_path / f"{turn}" for turn in range(number)]
    for path in paths[1:]:
        path.write_bytes(b"x")
    fsync.DiskSync().sync([*map(str, paths), str(tmp_path), str(tmp_path / "gone" / "file")])


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


def test_sync_of_many_files_without_syncfs_syncs_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsync, "_LIBC", None)
    fsync.DiskSync().sync([str(tmp_path / f"{turn}") for turn in range(fsync._SYNCFS_THRESHOLD)])


def test_read_nofollow_refuses_links_anywhere_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, linked = tmp_path / "folder", tmp_path / "linked"
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    linked.symlink_to(folder)
    (folder / "link").symlink_to(folder / "file")
    disks = files.LocalFiles()
    for check in (files._is_opened_at, lambda descriptor, location: False):  # where the system cannot tell
        monkeypatch.setattr(files, "_is_opened_at", check)
        assert disks.read_nofollow(str(folder / "file")).content == b"x"
        for location in (linked / "file", folder / "link"):
            with pytest.raises(InvalidInputError, match="link"):
                disks.read_nofollow(str(location))
    with pytest.raises(FileNotFoundError):
        disks.read_nofollow(str(folder / "gone"))


class RecordingLibc:
    """A C library that records the files whose write-back is started."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def sync_file_range(self, descriptor: int, *_: object) -> int:
        self.files.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        return 0


def test_writing_back_starts_for_new_files_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libc = RecordingLibc()
    monkeypatch.setattr(fsync, "_LIBC", libc)
    monkeypatch.setattr(fsync, "WRITE_BACK_SECONDS", 0.001)
    (tmp_path / "old").touch()
    with fsync.DiskSync().writing_back(str(tmp_path)):
        for name in ("one", "two"):
            (tmp_path / name).touch()
        deadline = time.monotonic() + 60
        while len(libc.files) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert libc.files == {"one", "two"}
    (tmp_path / "late").touch()
    time.sleep(0.01)
    assert "late" not in libc.files


@pytest.mark.skipif(not hasattr(fsync._LIBC, "sync_file_range"), reason="only Linux has sync_file_range")
def test_start_write_back_of_a_file_and_of_a_missing_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10_000)
    assert fsync._start_write_back(str(file))
    assert not fsync._start_write_back(str(tmp_path / "none"))
