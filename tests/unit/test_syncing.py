"""Making files durable: one by one, or all that a disk has to write."""

from __future__ import annotations

from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.storage import files


@pytest.mark.parametrize("number", [1, 2 * files._MANY])
def test_sync_takes_files_and_folders_that_are_there_and_those_that_are_gone(tmp_path: Path, number: int) -> None:
    places = [tmp_path / f"{turn}" for turn in range(number)]
    for place in places[1:]:
        place.write_bytes(b"x")
    files.LocalFiles().sync([*map(str, places), str(tmp_path), str(tmp_path / "gone" / "file")])


def test_sync_of_many_files_syncs_each_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files, "_sync_disk", synced.append)
    monkeypatch.setattr(files, "_LIBC", object())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    files.LocalFiles().sync([f"{tmp_path}/{name}/{turn}" for name in ("a", "b", "gone") for turn in range(files._MANY)])
    assert len(synced) == 1
    assert synced[0].startswith(str(tmp_path))


def test_sync_of_many_files_without_a_way_to_sync_a_disk_syncs_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_LIBC", None)
    files.LocalFiles().sync([str(tmp_path / f"{turn}") for turn in range(files._MANY)])


def test_read_plain_refuses_links_on_the_way_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, linked = tmp_path / "folder", tmp_path / "linked"
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    linked.symlink_to(folder)
    (folder / "link").symlink_to(folder / "file")
    disks = files.LocalFiles()
    for known in (files._is_at, lambda descriptor, location: False):  # where the system does not tell
        monkeypatch.setattr(files, "_is_at", known)
        assert disks.read_plain(str(folder / "file")) == b"x"
        for location in (linked / "file", folder / "link"):
            with pytest.raises(InvalidInputError, match="link"):
                disks.read_plain(str(location))
    with pytest.raises(FileNotFoundError):
        disks.read_plain(str(folder / "gone"))
