"""Finalize staged manifests: idempotent, once for each version, and only files of the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.config import Settings
from tiltyard.model.ids import Id
from tiltyard.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(Settings(root=str(tmp_path / "data")))
    storage.prepare()
    return storage


def stage(storage: Storage, location: str, content: bytes, name: str) -> str:
    path = f"{location}/_versions/7.manifest-{name}"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return path


def test_finalize_twice_is_idempotent_and_another_manifest_is_a_conflict(storage: Storage) -> None:
    location = storage.new_location(Id(("t",)))
    first, second = stage(storage, location, b"one", "a"), stage(storage, location, b"two", "b")
    final = f"{location}/_versions/7.manifest"
    stat = storage.manifests.finalize(location, first.lstrip("/"), final.lstrip("/"))
    assert storage.manifests.finalize(location, first, final) == stat == storage.stat(location, "_versions/7.manifest")
    with pytest.raises(ConcurrentModificationError):
        storage.manifests.finalize(location, second, final)
    assert Path(final).read_bytes() == b"one"
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
def test_finalize_other_files_is_refused(storage: Storage, source: str, target: str) -> None:
    location = storage.new_location(Id(("t",)))
    stage(storage, location, b"one", "a")
    with pytest.raises(InvalidInputError):
        storage.manifests.finalize(location, source, target)
