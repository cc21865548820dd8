"""Files are whole and durable: their contents, their names, and those of the folders above them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tiltyard.runtime import durability


class RecordingLibc:
    """A C library that records the files whose write-back is started."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def sync_file_range(self, descriptor: int, *_: object) -> int:
        self.files.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        return 0


def test_writing_back_starts_for_new_files_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libc = RecordingLibc()
    monkeypatch.setattr(durability, "_LIBC", libc)
    monkeypatch.setattr(durability, "WRITE_BACK_SECONDS", 0.001)
    (tmp_path / "old").touch()
    with durability.Durability().writing_back(str(tmp_path)):
        for name in ("one", "two"):
            (tmp_path / name).touch()
        deadline = time.monotonic() + 60
        while len(libc.files) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert libc.files == {"one", "two"}
    (tmp_path / "late").touch()
    time.sleep(0.01)
    assert "late" not in libc.files


@pytest.mark.skipif(not hasattr(durability._LIBC, "sync_file_range"), reason="only Linux has sync_file_range")
def test_start_write_back_of_a_file_and_of_a_missing_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10_000)
    assert durability._start_write_back(str(file))
    assert not durability._start_write_back(str(tmp_path / "none"))


class Syncs:
    """What was fsynced below a folder, by its path: threads of earlier tests may fsync elsewhere."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[Path] = []
        fsync = os.fsync

        def remember(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_relative_to(root):
                self.paths.append(path)

        monkeypatch.setattr(os, "fsync", remember)

    def take(self) -> set[Path]:
        paths, self.paths = set(self.paths), []
        return paths


def test_make_durable_syncs_contents_and_the_names_of_all_folders_up_to_the_root_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs, disks, data = Syncs(tmp_path, monkeypatch), durability.Durability(), tmp_path / "root" / "t" / "data"
    data.mkdir(parents=True)
    monkeypatch.setattr(durability, "_TIMESTAMP_NS", -1)
    for name in ("one", "two"):
        (data / name).write_bytes(b"x")
        disks.make_durable([str(data / name)], str(tmp_path / "root"))
        folders = {data} | ({data.parent, data.parent.parent} if name == "one" else set())
        assert syncs.take() == {data / name, *folders}
    (data.parent / "_deletions").mkdir()
    disks.make_durable([str(data / "two")], str(tmp_path / "root"))
    assert syncs.take() == {data / "two", data.parent}  # whose entries have changed


def test_make_durable_of_a_folder_that_was_just_changed_syncs_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes of a moment may have one timestamp."""
    syncs, disks, file = Syncs(tmp_path, monkeypatch), durability.Durability(), tmp_path / "file"
    file.write_bytes(b"x")
    for _ in range(2):
        disks.make_durable([str(file)], str(tmp_path))
        assert syncs.take() == {file, tmp_path}


def test_make_durable_of_a_folder_that_changes_during_a_slow_fsync_syncs_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is added then may have the timestamp that the folder had before, and not be on the disk."""
    syncs, disks, file = Syncs(tmp_path, monkeypatch), durability.Durability(), tmp_path / "file"
    file.write_bytes(b"x")
    changed_ns = tmp_path.stat().st_ctime_ns
    monkeypatch.setattr("time.time_ns", lambda: changed_ns + (10**9 if tmp_path in syncs.paths else 0))
    for _ in range(2):
        disks.make_durable([str(file)], str(tmp_path))
        assert syncs.take() == {file, tmp_path}
    monkeypatch.setattr("time.time_ns", lambda: changed_ns + 10**9)
    disks.make_durable([str(file)], str(tmp_path))
    syncs.take()
    disks.make_durable([str(file)], str(tmp_path))
    assert syncs.take() == {file}


def test_make_durable_of_missing_files_is_refused_unless_they_may_be_gone(tmp_path: Path) -> None:
    disks, missing = durability.Durability(), str(tmp_path / "gone" / "file")
    disks.make_durable([missing], str(tmp_path), missing_ok=True)
    with pytest.raises(FileNotFoundError):
        disks.make_durable([missing], str(tmp_path))


@pytest.mark.parametrize("number", [2, 100])
@pytest.mark.parametrize("size", [0, 5, 900])
def test_make_durable_of_a_file_that_is_not_whole_is_refused(tmp_path: Path, number: int, size: int) -> None:
    for turn in range(number):
        (tmp_path / f"{turn}.lance").write_bytes(bytes(size) + b"LANC")
    files = [durability.WrittenFile(f"{tmp_path}/{turn}.lance", size + 4) for turn in range(number)]
    disks = durability.Durability()
    disks.make_durable(files, str(tmp_path))
    (tmp_path / "1.lance").write_bytes(bytes(size // 2))
    with pytest.raises(durability.BrokenFileError, match=r"1\.lance"):
        disks.make_durable(files, str(tmp_path))
    with pytest.raises(durability.BrokenFileError, match="without its end"):
        disks.make_durable([f"{tmp_path}/1.lance"], str(tmp_path))


def test_make_durable_of_a_tree_syncs_all_of_it_and_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs, folder = Syncs(tmp_path, monkeypatch), tmp_path / "t"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "file").write_bytes(b"x")
    (folder / "link").symlink_to("/")
    durability.Durability().make_durable([f"{folder}/"], str(tmp_path))
    assert syncs.take() == {tmp_path, folder, folder / "a", folder / "a" / "b", folder / "a" / "file"}


def test_make_folder_makes_its_name_durable_and_those_of_new_folders_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(tmp_path, monkeypatch)
    durability.Durability().make_folder(str(tmp_path / "a" / "b" / "c"))
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert syncs.take() == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}


def test_replace_file_is_durable_and_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(tmp_path, monkeypatch)
    for content in (b"one", b"two"):
        durability.replace_file(str(tmp_path / "file"), content)
        assert (tmp_path / "file").read_bytes() == content
        assert tmp_path in syncs.take()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_many_files_are_synced_by_their_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(durability, "_sync_disk", synced.append)
    monkeypatch.setattr(durability, "_LIBC", object())
    files = [tmp_path / f"{turn}" for turn in range(durability._SYNCFS_THRESHOLD)]
    for file in files:
        file.touch()
    durability.Durability().make_durable(map(str, files), str(tmp_path))
    assert synced == [str(tmp_path)]


def test_atomic_file_has_its_name_after_the_block_alone(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("before")
    with durability.atomic_file(target) as temporary:
        temporary.write_text("after")
        assert target.read_text() == "before"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "after"}


def test_atomic_file_after_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("before")

    def write_half() -> None:
        with durability.atomic_file(target, "part") as temporary:
            temporary.write_text("half")
            assert temporary == tmp_path / "part"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "before"}
