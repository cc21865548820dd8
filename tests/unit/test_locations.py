"""Where tables may lie, on local disks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.config import Settings
from tiltyard.storage import Storage, StorageError
from tiltyard.storage.locations import new_folder


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    found = Storage(Settings(root=str(tmp_path / "data"), allowed_roots=(str(tmp_path / "more"),)))
    found.prepare()
    return found


@given(st.text(min_size=1, max_size=256))
def test_new_folder_any_name_is_plain_and_unique(name: str) -> None:
    folders = {new_folder((name,)) for _ in range(2)}
    assert len(folders) == 2
    for folder in folders:
        assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-.")
        assert len(folder) < 100
        assert not folder.startswith((".", "-"))


@pytest.mark.parametrize("location", ["{root}/a", "{root}/a/", "file://{root}/a", "FILE://localhost{root}/a"])
def test_check_location_every_spelling_is_one(storage: Storage, location: str) -> None:
    assert storage.check_location(location.format(root=storage.root)) == f"{storage.root}/a"


@pytest.mark.parametrize(
    "location",
    [
        "", "a", "./a", "{root}", "{root}/", "/", "{root}-evil/a", "{root}/../x", "{root}/a/../../x", "{root}/./a",
        "{root}//a", "{root}/%2e%2e/x", "{root}/%2E%2E/x", "{root}/a%2fb", "{root}/a%00", "{root}/a\0", "{root}/a\nb",
        "{root}/a\\..\\b", "file://{root}/a?b=c", "file://{root}/a#b", "file://host{root}/a", "file:///etc/%2e%2e/x",
        "s3://bucket/a", "http://host/a", "{root}/t.lance/data", "{root}/link/a", "{root}/loop/a", "{root}/file",
        "{root}/holder",
    ],
)  # fmt: skip
def test_check_location_outside_or_odd_is_refused(storage: Storage, tmp_path: Path, location: str) -> None:
    root = Path(storage.root)
    (tmp_path / "outside").mkdir()
    (tmp_path / "data-evil").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "loop").symlink_to(root / "loop")
    (root / "file").touch()
    (root / "holder" / "t.lance").mkdir(parents=True)
    with pytest.raises(InvalidInputError):
        storage.check_location(location.format(root=storage.root))


def test_check_location_allowed_root_and_links_inside_are_fine(storage: Storage, tmp_path: Path) -> None:
    assert storage.check_location(str(tmp_path / "more" / "t")) == str(tmp_path / "more" / "t")
    (Path(storage.root) / "link").symlink_to(tmp_path / "more")
    assert storage.check_location(f"{storage.root}/link/t") == str(tmp_path / "more" / "t")


@pytest.mark.parametrize("location", ["{root}", "/", "/etc", "{root}-evil", "{parent}"])
def test_delete_folder_outside_or_root_is_refused(storage: Storage, location: str) -> None:
    with pytest.raises(InvalidInputError):
        storage.delete_folder(location.format(root=storage.root, parent=Path(storage.root).parent))


def test_delete_folder_twice_is_fine(storage: Storage) -> None:
    location = storage.new_location(("t",))
    (Path(location) / "a" / "b").mkdir(parents=True)
    (Path(location) / "a" / "file").touch()
    for _ in range(2):
        storage.delete_folder(location)
    assert not Path(location).exists()


def test_prepare_root_that_is_a_file_or_not_writable_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is no folder"):
        Storage(Settings(root=str(tmp_path / "file"))).prepare()
    with pytest.raises(StorageError, match=r"is not writable|is no folder"):
        Storage(Settings(root="/proc/none")).prepare()
    with pytest.raises(StorageError, match="cannot be used"):
        Storage(Settings(root="ftp://host/x", db="sqlite:///x"))


def test_probe_leaves_nothing(storage: Storage) -> None:
    storage.probe()
    assert list(Path(storage.root).iterdir()) == []


def staged(storage: Storage, location: str, content: bytes, name: str) -> str:
    path = f"{location}/_versions/7.manifest-{name}"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return path


def test_finalize_manifest_twice_is_once_and_another_is_a_conflict(storage: Storage) -> None:
    location = storage.new_location(("t",))
    first, second = staged(storage, location, b"one", "a"), staged(storage, location, b"two", "b")
    final = f"{location}/_versions/7.manifest"
    done = storage.finalize_manifest(location, first.lstrip("/"), final.lstrip("/"))
    assert storage.finalize_manifest(location, first, final) == done == storage.stat(location, "_versions/7.manifest")
    with pytest.raises(ConcurrentModificationError):
        storage.finalize_manifest(location, second, final)
    assert storage.read_file(location, "_versions/7.manifest") == b"one"
    assert not Path(first).exists()
    assert storage.has_table(location)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("/etc/passwd", "_versions/7.manifest"),
        ("../x/_versions/7.manifest-a", "_versions/7.manifest"),
        ("_versions/7.manifest-a", "../x/_versions/7.manifest"),
        ("data/7.manifest-a", "_versions/7.manifest"),
        ("_versions/7.manifest-a", "_versions/../../7.manifest"),
        ("_versions/7.manifest-a", "_versions/7.txt"),
        ("s3://b/_versions/7.manifest-a", "_versions/7.manifest"),
        ("_versions/8.manifest-none", "_versions/8.manifest"),
        ("_versions/%2e%2e/7.manifest-a", "_versions/7.manifest"),
    ],
)
def test_finalize_manifest_other_files_are_refused(storage: Storage, source: str, target: str) -> None:
    location = storage.new_location(("t",))
    staged(storage, location, b"one", "a")
    with pytest.raises(InvalidInputError):
        storage.finalize_manifest(location, source, target)
