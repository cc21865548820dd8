"""Where tables may lie, on local disks."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, PermissionDeniedError

from tiltyard.config import Settings
from tiltyard.storage import Storage, StorageError
from tiltyard.storage.locations import check_table_location, new_folder_name, with_existing_case


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    roots = tmp_path / "more", tmp_path / "data" / "inner" / "deep"
    found = Storage(Settings(root=str(tmp_path / "data"), allowed_roots=tuple(map(str, roots))))
    found.prepare()
    return found


@given(st.text(min_size=1, max_size=256))
def test_new_folder_any_name_is_plain_and_unique(name: str) -> None:
    folders = {new_folder_name((name,)) for _ in range(2)}
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
        "{root}/holder", "{root}/\uff0e\uff0e/x", "{root}/a\uff0fb", "{root}/\u2025/x", "{root}/cafe\u0301",
        "{root}/a\u200bb", "{root}/a\u202eb",
        "{root}/link/../x",
        "{root}/%2e%2e%2fx", "{root}/%252e%252e/x", "file://{root}/%ef%bc%8e%ef%bc%8e/x", "{root}/a%0ab",
        "{root}/" + "a" * 256, "{root}/" + "\u00e9" * 128, "{root}/" + "a" * 256 + "/b",
        "{root}2/a", "{root}.lance/a", "{root} /a", "{root}/inner", "{root}/up",
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
    (root / "up").symlink_to(root)
    with pytest.raises(InvalidInputError):
        storage.check_location(location.format(root=storage.root))


def test_check_location_allowed_root_and_links_inside_are_fine(storage: Storage, tmp_path: Path) -> None:
    assert storage.check_location(str(tmp_path / "more" / "t")) == str(tmp_path / "more" / "t")
    (Path(storage.root) / "link").symlink_to(tmp_path / "more")
    assert storage.check_location(f"{storage.root}/link/t") == str(tmp_path / "more" / "t")


PIECES = st.sampled_from(
    ["/", "//", "..", ".", "%2e", "%2F", "%00", "%", "\\", "\0", "\n", "a", "b", "t.lance", "t2", "\uff0e",
     "\u2025", "\uff0f", "\u2215", "é", "e\u0301", "\ufb01", "\u200b", " ", "~", "$", "*", "?", "#",
     "file://", "s3://lake/", "link", "out", "inner", "deep"]
)  # fmt: skip
AIMS = st.one_of(
    st.lists(PIECES, max_size=8).map("".join),
    st.text(max_size=12),
    st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=6).map("/".join),
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(AIMS, st.sampled_from(["{root}/", "{root}", "", "/", "file://{root}/", "{root}/link/", "{root}/a/"]))
def test_check_location_whatever_is_given_is_below_a_root_or_refused(storage: Storage, aim: str, start: str) -> None:
    root = Path(storage.root)
    if not (root / "link").is_symlink():
        (root.parent / "out").mkdir()
        (root / "link").symlink_to(root.parent / "more")
        (root / "out").symlink_to(root.parent / "out")
    try:
        found = storage.check_location(start.format(root=root) + aim)
    except InvalidInputError:
        return
    assert os.path.realpath(found) == found and os.path.normpath(found) == found
    below = [Path(other) for other in (root, root.parent / "more") if Path(other) in Path(found).parents]
    assert below and Path(found) not in (root / "inner", root / "inner" / "deep")
    assert not any(parent.name.endswith(".lance") for parent in Path(found).parents)
    assert storage.check_location(found) == found
    assert storage.check_location(found + "/") == found


@given(st.sampled_from(["s3://lake/tables", "gs://lake/tables", "az://lake/tables"]), AIMS)
def test_check_below_whatever_is_given_on_object_stores_is_below_the_root_or_refused(root: str, aim: str) -> None:
    for start in (root, f"{root}/", root.upper() + "/"):
        try:
            found = check_table_location(start + aim, (root,))
        except InvalidInputError:
            continue
        assert found.startswith(f"{root}/") and not found.endswith("/")
        assert not {"", ".", ".."} & set(found.partition("://")[2].split("/"))
        assert not set("%?#\\") & set(found) and unicodedata.normalize("NFKC", found) == found
        assert check_table_location(found, (root,)) == found


@pytest.mark.parametrize(
    "location",
    [
        "s3://lake2/tables/t", "s3://lake-evil/tables/t", "s3://LAKE/tables/t", "s3://lake/tables2/t", "s3://lake/tables",
        "s3://lake@evil/tables/t", "s3://key:secret@lake/tables/t", "s3://lake:9000/tables/t", "s3:///tables/t",
        "s3://lake/tables/%2e%2e/t", "s3://lake/tables/a%20b", "s3://lake/tables/a//b", "s3://lake//tables/t",
        "s3a://lake/tables/t", "gs://lake/tables/t",
        "s3://lake/tables/\uff0e\uff0e/t", "s3://lake/tables/\uff54", "s3://\u24dbake/tables/t",
    ],
)  # fmt: skip
def test_check_below_siblings_and_other_spellings_on_object_stores_are_refused(location: str) -> None:
    with pytest.raises(InvalidInputError):
        check_table_location(location, ("s3://lake/tables",))


def test_check_below_look_alikes_are_places_of_their_own() -> None:
    latin, cyrillic = "s3://lake/tables/table", "s3://lake/tables/t\u0430ble"
    assert check_table_location(cyrillic, ("s3://lake/tables",)) == cyrillic != latin
    with pytest.raises(InvalidInputError):
        check_table_location("s3://lake/t\u0430bles/t", ("s3://lake/tables",))


def test_check_below_azure_hosts_have_one_spelling() -> None:
    root = "abfss://lake@account.dfs.core.windows.net/tables"
    assert check_table_location("ABFSS://Lake@Account.DFS.core.windows.net/tables/t/", (root,)) == f"{root}/t"


def test_as_on_disk_folders_have_the_spelling_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "Films" / "Old").mkdir(parents=True)
    for given_name in ("Films/Old/t", "films/old/t", "FILMS/OLD/t"):
        assert with_existing_case(f"{tmp_path}/{given_name}", str(tmp_path)) == f"{tmp_path}/Films/Old/t"
    with pytest.raises(InvalidInputError, match="small letters"):
        with_existing_case(f"{tmp_path}/films/New", str(tmp_path))


def test_options_of_a_location_outside_the_roots_are_refused(storage: Storage, tmp_path: Path) -> None:
    for location in (str(tmp_path), f"{tmp_path}/data-evil/t", "/etc", "s3://lake/t"):
        for call in (storage.options, storage.public_options, storage.files):
            with pytest.raises(PermissionDeniedError):
                call(location)


def test_stat_read_and_finalize_through_a_symbolic_link_are_refused(storage: Storage, tmp_path: Path) -> None:
    location = storage.new_location(("t",))
    (tmp_path / "secret").write_bytes(b"secret")
    (Path(location) / "_versions").mkdir(parents=True)
    (Path(location) / "_versions" / "7.manifest-a").symlink_to(tmp_path / "secret")
    (Path(location) / "data").symlink_to(tmp_path)
    for path in ("_versions/7.manifest-a", "data/secret"):
        with pytest.raises(InvalidInputError, match="symbolic link"):
            storage.stat(location, path)
    with pytest.raises(InvalidInputError, match="symbolic link"):
        storage.manifests.read(location, storage.manifests.resolve_path(location, "_versions/7.manifest-a"))
    with pytest.raises(InvalidInputError, match="symbolic link"):
        storage.manifests.finalize(location, "_versions/7.manifest-a", "_versions/7.manifest")


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
    before = list(Path(storage.root).iterdir())
    storage.probe()
    storage.check_location(f"{storage.root}/a")
    assert list(Path(storage.root).iterdir()) == before


def staged(storage: Storage, location: str, content: bytes, name: str) -> str:
    path = f"{location}/_versions/7.manifest-{name}"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return path


def test_finalize_manifest_twice_is_once_and_another_is_a_conflict(storage: Storage) -> None:
    location = storage.new_location(("t",))
    first, second = staged(storage, location, b"one", "a"), staged(storage, location, b"two", "b")
    final = f"{location}/_versions/7.manifest"
    done = storage.manifests.finalize(location, first.lstrip("/"), final.lstrip("/"))
    assert storage.manifests.finalize(location, first, final) == done == storage.stat(location, "_versions/7.manifest")
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
def test_finalize_manifest_other_files_are_refused(storage: Storage, source: str, target: str) -> None:
    location = storage.new_location(("t",))
    staged(storage, location, b"one", "a")
    with pytest.raises(InvalidInputError):
        storage.manifests.finalize(location, source, target)


@pytest.mark.parametrize("name", ["a" * 256, "ä" * 128, "/".join(["a" * 200] * 30)])
@pytest.mark.parametrize("start", ["/root/", "s3://bucket/root/", "file:///root/"])
def test_location_that_is_longer_than_storage_takes_is_refused(start: str, name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"more than \d+ bytes"):
        check_table_location(f"{start}{name}", ["/root", "s3://bucket/root"])
    assert check_table_location(f"{start}{'a' * 255}", ["/root", "s3://bucket/root"]).endswith("a" * 255)
