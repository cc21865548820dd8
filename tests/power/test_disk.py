"""The disk that loses power: it is a file system like others, and forgets what was not fsynced."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.power.disk import Disk
from tests.power.strengths import Strength
from tests.power.tree import PAGE

pytestmark = pytest.mark.extended


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def left(disk: Disk, strength: Strength, seed: int = 0) -> dict[str, bytes]:
    """Return the files that a loss of power leaves, by their paths."""
    folder = disk.keep(strength, seed, disk.folder.parent / f"left-{strength}-{seed}")
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_disk_is_a_file_system_like_others(disk: Disk) -> None:
    source = Path(__file__).parent
    shutil.copytree(source, disk.folder / "copy")
    for path in filter(Path.is_file, source.rglob("*")):
        assert (disk.folder / "copy" / path.relative_to(source)).read_bytes() == path.read_bytes()
    file = disk.folder / "file"
    file.write_bytes(b"a" * 10)
    os.link(file, disk.folder / "other")
    assert file.stat().st_nlink == 2 and file.samefile(disk.folder / "other")
    with file.open("r+b") as opened:
        file.unlink()
        opened.seek(3 * PAGE)
        opened.write(b"end")
    assert (disk.folder / "other").read_bytes() == b"a" * 10 + bytes(3 * PAGE - 10) + b"end"
    os.truncate(disk.folder / "other", 5)
    (disk.folder / "other").rename(disk.folder / "copy" / "moved")
    assert (disk.folder / "copy" / "moved").read_bytes() == b"aaaaa"
    with pytest.raises(OSError, match="not empty"):
        (disk.folder / "copy").rmdir()
    with pytest.raises(FileExistsError):
        (disk.folder / "copy").mkdir()
    (disk.folder / "link").symlink_to("copy/moved")
    assert (disk.folder / "link").read_bytes() == b"aaaaa"
    shutil.rmtree(disk.folder / "copy")
    assert [path.name for path in disk.folder.iterdir()] == ["link"]


def test_disk_that_loses_power_keeps_names_and_contents_by_their_fsyncs(disk: Disk) -> None:
    for name in ("both", "content", "name"):
        (disk.folder / name).write_bytes(name.encode() * 1000)
    fsync(disk.folder / "both")
    fsync(disk.folder)
    (disk.folder / "late").write_bytes(b"late")
    fsync(disk.folder / "content")
    assert left(disk, Strength.STRICT) == {"both": b"both" * 1000, "content": b"content" * 1000, "name": b""}
    in_order = left(disk, Strength.ORDERED)
    assert in_order == {"both": b"both" * 1000, "content": b"content" * 1000, "name": b"", "late": b""}
    assert left(disk, Strength.KILL)["late"] == b"late"


def test_ordered_disk_flushes_what_is_renamed_over_another_file(disk: Disk) -> None:
    (disk.folder / "old").write_bytes(b"old")
    fsync(disk.folder / "old")
    (disk.folder / "new").write_bytes(b"new")
    (disk.folder / "new").rename(disk.folder / "old")
    (disk.folder / "renamed").write_bytes(b"renamed")
    (disk.folder / "renamed").rename(disk.folder / "to nothing")
    outcomes = [left(disk, Strength.ORDERED, seed) for seed in range(12)]
    assert all(outcome["old"] in {b"old", b"new"} for outcome in outcomes)
    assert {outcome["old"] for outcome in outcomes} == {b"old", b"new"}
    assert all(not outcome.get("to nothing") for outcome in outcomes)


def test_random_disk_tears_pages_and_leaves_out_names(disk: Disk) -> None:
    file = disk.folder / "file"
    file.write_bytes(b"a" * 8 * PAGE)
    fsync(file)
    fsync(disk.folder)
    file.write_bytes(b"")
    file.write_bytes(b"b" * 8 * PAGE)
    (disk.folder / "new").touch()
    outcomes = [left(disk, Strength.RANDOM, seed) for seed in range(40)]
    assert {outcome.keys() >= {"new"} for outcome in outcomes} == {True, False}
    pages = [outcome["file"][start : start + PAGE] for outcome in outcomes for start in range(0, 8 * PAGE, PAGE)]
    assert {bytes([page[0]]) for page in pages if page} == {b"a", b"b"}
    assert any(0 < page.count(b"b") < PAGE for page in pages)
    shutil.rmtree(disk.folder.parent / "left-random-7")
    assert left(disk, Strength.RANDOM, 7) == outcomes[7]


def test_database_on_the_disk_keeps_what_it_committed(disk: Disk) -> None:
    with closing(sqlite3.connect(disk.folder / "database")) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA synchronous = FULL")
        writer.execute("CREATE TABLE t (number INTEGER)")
        with closing(sqlite3.connect(disk.folder / "database")) as reader:  # by shared memory
            for number in range(100):
                writer.execute("INSERT INTO t VALUES (?)", (number,))
                writer.commit()
            assert reader.execute("SELECT count(*) FROM t").fetchone() == (100,)
        for strength in Strength:
            for seed in range(3):
                folder = disk.keep(strength, seed, disk.folder.parent / f"{strength}-{seed}")
                with closing(sqlite3.connect(folder / "database")) as database:
                    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                    assert database.execute("SELECT count(*) FROM t").fetchone() == (100,)


def test_disk_without_power_fails_and_without_room_says_so(disk: Disk) -> None:
    disk.command("room 10000")
    with pytest.raises(OSError, match="No space left"):
        (disk.folder / "large").write_bytes(bytes(20_000))
    disk.command("room")
    (disk.folder / "large").write_bytes(bytes(20_000))
    disk.arm(1)
    (disk.folder / "1").touch()
    with pytest.raises(OSError, match="Input/output error"):
        (disk.folder / "2").touch()
    assert disk.is_cut
    with pytest.raises(OSError, match="Input/output error"):
        disk.command("syncfs")


def test_disk_starts_with_a_copy_that_is_durable(fuse: None, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "file").write_bytes(b"1" * 10_000)
    (source / "folder").chmod(0o700)
    with Disk(tmp_path / "disk").mount(source) as disk:
        assert (disk.folder / "folder").stat().st_mode & 0o777 == 0o700
        with (disk.folder / "folder" / "file").open("r+b") as file:
            file.write(b"2")
        assert left(disk, Strength.STRICT) == {"folder/file": b"1" * 10_000}
