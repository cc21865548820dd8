"""Files of tables that pylance writes are whole, and none of them is without some of its bytes."""

from __future__ import annotations

import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tiltyard.runtime.durability import BrokenFileError, check_whole
from tiltyard.storage.manifests.manifest_format import top_fields
from tiltyard.storage.manifests.manifest_references import new_files


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with files of all forms."""
    folder = tmp_path_factory.mktemp("forms") / "t.lance"
    rows = pa.table({"id": range(30_000), "word": [f"w{number}" for number in range(30_000)]})
    dataset = lance.write_dataset(rows, folder, max_rows_per_file=10_000)
    dataset.create_scalar_index("word", "INVERTED")
    dataset.delete("id % 5000 = 7")  # lists
    dataset.delete("id % 2 = 0 AND id < 10000")  # a bitmap
    dataset.delete("id >= 12000 AND id < 19000 OR id IN (20001, 20005)")  # one with runs
    dataset.tags.create("tag", 1)
    dataset.create_branch("dev")
    return folder


def check(path: Path, size: int | None = None, deleted_rows: int | None = None) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        check_whole(descriptor, str(path), size, deleted_rows)
    finally:
        os.close(descriptor)


def test_files_that_pylance_writes_are_whole(table: Path) -> None:
    files = [path for path in table.rglob("*") if path.is_file()]
    for path in files:
        check(path)
    assert {path.suffix for path in files} >= {".lance", ".arrow", ".bin", ".txn", ".manifest", ".json"}


def test_files_are_as_the_manifest_says(table: Path) -> None:
    names = sorted((table / "_versions").glob("*.manifest"), reverse=True)
    seen, previous = set[str](), None
    for name in names:
        content = name.read_bytes()
        for location, file in new_files(content, list(top_fields(content)), previous, str(table)):
            assert location not in seen, "each file is new once"
            seen.add(location)
            check(Path(location), file.size, file.deleted_rows)
            if file.deleted_rows is not None and location.endswith(".bin"):
                with pytest.raises(BrokenFileError):
                    check(Path(location), file.size, file.deleted_rows + 1)
        previous = content
    parts = ("data", "_deletions", "_indices", "_transactions")
    assert seen == {str(path) for part in parts for path in (table / part).rglob("*") if path.is_file()}


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_files_without_their_end_are_not_whole(table: Path, tmp_path: Path, left: float) -> None:
    for path in table.rglob("*"):
        is_reference = path.suffix == ".json" and "_refs" in path.parts
        if path.suffix in (".lance", ".arrow", ".bin", ".manifest") or is_reference:
            cut = tmp_path / path.relative_to(table)
            cut.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes()
            if path.is_file() and (size := int(len(content) * left)) < len(content):
                cut.write_bytes(content[:size])
                with pytest.raises(BrokenFileError):
                    check(cut)


def test_bitmap_without_a_part_in_the_middle_is_not_whole(table: Path, tmp_path: Path) -> None:
    for path in (table / "_deletions").glob("*.bin"):
        content = path.read_bytes()
        cut = tmp_path / "_deletions" / path.name
        cut.parent.mkdir(exist_ok=True)
        cut.write_bytes(content[: len(content) // 2] + content[len(content) // 2 + 8 :])
        with pytest.raises(BrokenFileError):
            check(cut)


@pytest.mark.parametrize("content", [b"", b":0", b":0\x00\x00\xff\xff\xff\xff", b";0\xff\xff" + bytes(64), b"????"])
def test_hostile_bitmaps_are_not_whole(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "_deletions" / "0-1-2.bin"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(BrokenFileError):
        check(path)
