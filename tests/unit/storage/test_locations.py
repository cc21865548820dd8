"""Locations of tables: one spelling each, below the roots, and what the storage does there."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.config import Settings
from tiltyard.model.ids import Id
from tiltyard.storage import Storage, StorageError
from tiltyard.storage.locations import check_table_location, new_folder_name, with_existing_case


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    roots = tmp_path / "more", tmp_path / "data" / "inner" / "deep"
    storage = Storage(Settings(root=str(tmp_path / "data"), allowed_roots=tuple(map(str, roots))))
    storage.prepare()
    return storage


@given(st.text(min_size=1, max_size=256))
def test_new_folder_name_of_any_name_is_plain_and_unique(name: str) -> None:
    folders = {new_folder_name(Id((name,))) for _ in range(2)}
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
        location = storage.check_location(start.format(root=root) + aim)
    except InvalidInputError:
        return
    assert os.path.realpath(location) == location and os.path.normpath(location) == location
    below = [Path(other) for other in (root, root.parent / "more") if Path(other) in Path(location).parents]
    assert below and Path(location) not in (root / "inner", root / "inner" / "deep")
    assert not any(parent.name.endswith(".lance") for parent in Path(location).parents)
    assert storage.check_location(location) == location
    assert storage.check_location(location + "/") == location


@given(st.sampled_from(["s3://lake/tables", "gs://lake/tables", "az://lake/tables"]), AIMS)
def test_check_table_location_of_anything_on_object_stores_is_below_the_root_or_refused(root: str, aim: str) -> None:
    for start in (root, f"{root}/", root.upper() + "/"):
        try:
            location = check_table_location(start + aim, (root,))
        except InvalidInputError:
            continue
        assert location.startswith(f"{root}/") and not location.endswith("/")
        assert not {"", ".", ".."} & set(location.partition("://")[2].split("/"))
        assert not set("%?#\\") & set(location) and unicodedata.normalize("NFKC", location) == location
        assert check_table_location(location, (root,)) == location


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
def test_check_table_location_siblings_and_other_spellings_on_object_stores_are_refused(location: str) -> None:
    with pytest.raises(InvalidInputError):
        check_table_location(location, ("s3://lake/tables",))


def test_check_table_location_look_alikes_are_different_locations() -> None:
    latin, cyrillic = "s3://lake/tables/table", "s3://lake/tables/t\u0430ble"
    assert check_table_location(cyrillic, ("s3://lake/tables",)) == cyrillic != latin
    with pytest.raises(InvalidInputError):
        check_table_location("s3://lake/t\u0430bles/t", ("s3://lake/tables",))


def test_check_table_location_azure_hosts_have_one_spelling() -> None:
    root = "abfss://lake@account.dfs.core.windows.net/tables"
    assert check_table_location("ABFSS://Lake@Account.DFS.core.windows.net/tables/t/", (root,)) == f"{root}/t"


def test_with_existing_case_folders_have_the_spelling_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "Films" / "Old").mkdir(parents=True)
    for given_name in ("Films/Old/t", "films/old/t", "FILMS/OLD/t"):
        assert with_existing_case(f"{tmp_path}/{given_name}", str(tmp_path)) == f"{tmp_path}/Films/Old/t"
    with pytest.raises(InvalidInputError, match="small letters"):
        with_existing_case(f"{tmp_path}/films/New", str(tmp_path))


def test_options_of_a_location_outside_the_roots_are_refused(storage: Storage, tmp_path: Path) -> None:
    for location in (str(tmp_path), f"{tmp_path}/data-evil/t", "/etc", "s3://lake/t"):
        for call in (storage.options, storage.roots.public_options, storage.files):
            with pytest.raises(PermissionDeniedError):
                call(location)


def test_stat_read_and_finalize_through_a_symbolic_link_are_refused(storage: Storage, tmp_path: Path) -> None:
    location = storage.new_location(Id(("t",)))
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
    location = storage.new_location(Id(("t",)))
    (Path(location) / "a" / "b").mkdir(parents=True)
    (Path(location) / "a" / "file").touch()
    for _ in range(2):
        storage.delete_folder(location)
    assert not Path(location).exists()


def test_prepare_root_that_is_a_file_or_not_writable_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is not a folder"):
        Storage(Settings(root=str(tmp_path / "file"))).prepare()
    with pytest.raises(StorageError, match=r"is not writable|is not a folder"):
        Storage(Settings(root="/proc/none")).prepare()
    with pytest.raises(StorageError, match="cannot be used"):
        Storage(Settings(root="ftp://host/x", db="sqlite:///x"))


def test_probe_leaves_nothing(storage: Storage) -> None:
    before = list(Path(storage.root).iterdir())
    storage.probe()
    storage.check_location(f"{storage.root}/a")
    assert list(Path(storage.root).iterdir()) == before


@pytest.mark.parametrize("name", ["a" * 256, "ä" * 128, "/".join(["a" * 200] * 30)])
@pytest.mark.parametrize("start", ["/root/", "s3://bucket/root/", "file:///root/"])
def test_check_table_location_too_long_for_a_storage_is_refused(start: str, name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"more than \d+ bytes"):
        check_table_location(f"{start}{name}", ["/root", "s3://bucket/root"])
    assert check_table_location(f"{start}{'a' * 255}", ["/root", "s3://bucket/root"]).endswith("a" * 255)
