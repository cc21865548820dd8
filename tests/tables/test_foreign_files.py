"""Files of a table lie in its folder: a manifest that names others is neither committed nor read.

Whoever may write a table's files could otherwise have the server read, with its own rights, what is not theirs.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError
from tests.services.wire import stream

import tiltyard
from tiltyard.storage.manifests import check_manifest

ROWS, SECRET = pa.table({"n": [1, 2, 3]}), pa.table({"n": [42]})


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """A table of somebody else below the root, and one outside it."""
    found = {"other": tmp_path / "root" / "other-1.lance", "outside": tmp_path / "outside.lance"}
    for place in found.values():
        lance.write_dataset(SECRET, place)
    return found


@pytest.fixture
def namespace(tmp_path: Path, places: dict[str, Path]) -> tiltyard.Namespace:
    return tiltyard.Namespace(str(tmp_path / "root"), jobs=0)


def stolen(location: str, place: Path, tmp_path: Path) -> bytes:
    """A manifest of version 2 in which the rows are those of another table."""
    clone = tmp_path / f"clone-{uuid4().hex}"
    lance.dataset(place).shallow_clone(clone, 1)
    while lance.dataset(clone).version < 2:
        lance.dataset(clone).update_metadata({"more": "versions"})
    return next((clone / "_versions").glob("*3.manifest")).read_bytes()  # 2^64 - 1 - 2


@pytest.mark.parametrize("which", ["other", "outside"])
def test_cve_2026_42812_manifest_that_names_files_elsewhere_is_not_committed(
    namespace: tiltyard.Namespace, places: dict[str, Path], tmp_path: Path, which: str
) -> None:
    namespace.create_table({"id": ["t"]}, stream(ROWS))
    location = namespace.describe_table({"id": ["t"]}).location
    content = stolen(location, places[which], tmp_path)
    assert check_manifest(content, 2).bases == [str(places[which])]
    staged = Path(location) / "_versions" / f"{2**64 - 1 - 2}.manifest-{uuid4()}"
    staged.write_bytes(content)
    with pytest.raises(InvalidInputError, match="outside the table's folder"):
        namespace.create_table_version({"id": ["t"], "version": 2, "manifest_path": str(staged), "naming_scheme": "V2"})
    assert namespace.count_table_rows({"id": ["t"]}).count == 3


@pytest.mark.parametrize("which", ["other", "outside"])
def test_manifest_that_was_put_there_round_the_server_is_not_read(
    namespace: tiltyard.Namespace, places: dict[str, Path], tmp_path: Path, which: str
) -> None:
    namespace.create_table({"id": ["t"], "properties": {"tiltyard.managed_versioning": "false"}}, stream(ROWS))
    location = namespace.describe_table({"id": ["t"]}).location
    content = stolen(location, places[which], tmp_path)
    (Path(location) / "_versions" / f"{2**64 - 1 - 2}.manifest").write_bytes(content)
    assert lance.dataset(location).to_table() == SECRET  # it would work, for one who may read both
    for request in ({"id": ["t"]}, {"id": ["t"], "version": 2}):
        with pytest.raises(PermissionDeniedError, match="outside the folder"):
            namespace.count_table_rows(request)
    with pytest.raises(PermissionDeniedError, match="outside the folder"):
        namespace.insert_into_table({"id": ["t"]}, stream(ROWS))


def test_clone_table_reads_what_it_shares_and_so_does_one_that_is_registered_again(
    namespace: tiltyard.Namespace,
) -> None:
    namespace.create_table({"id": ["t"]}, stream(ROWS))
    source = namespace.describe_table({"id": ["t"]}).location
    namespace.call("CloneTable", {"id": ["c"], "source_location": source})
    namespace.call("CloneTable", {"id": ["d"], "source_location": namespace.describe_table({"id": ["c"]}).location})
    for name in ("c", "d"):
        assert namespace.count_table_rows({"id": [name]}).count == 3
        location = namespace.deregister_table({"id": [name]}).location
        namespace.register_table({"id": [f"{name}2"], "location": location})
        assert namespace.count_table_rows({"id": [f"{name}2"]}).count == 3
        namespace.insert_into_table({"id": [f"{name}2"]}, stream(ROWS))
        assert namespace.count_table_rows({"id": [f"{name}2"], "version": 1}).count == 3


def test_register_table_with_files_outside_the_roots_is_refused(
    namespace: tiltyard.Namespace, places: dict[str, Path], tmp_path: Path
) -> None:
    place = tmp_path / "root" / "clone"
    lance.dataset(places["outside"]).shallow_clone(place, 1)
    with pytest.raises(InvalidInputError, match="outside the server's roots"):
        namespace.register_table({"id": ["c"], "location": str(place)})
    assert namespace.list_tables({"id": []}).tables == []


def test_branches_share_the_files_of_their_table(namespace: tiltyard.Namespace) -> None:
    namespace.create_table({"id": ["t"]}, stream(ROWS))
    namespace.call("CreateTableBranch", {"id": ["t"], "name": "b"})
    assert namespace.count_table_rows({"id": ["t"], "branch": "b"}).count == 3


def test_base_that_leaves_the_folder_by_dots_is_elsewhere(namespace: tiltyard.Namespace) -> None:
    namespace.create_table({"id": ["t"]}, stream(ROWS))
    location = namespace.describe_table({"id": ["t"]}).location
    datasets = namespace._services.storage.datasets
    for base in (f"{location}/../other-1.lance", f"{location}2", f"{location}/%2e%2e/x", "", "data", f"{location}//.."):
        assert not datasets.may_use(location, base)
    for base in (location, f"{location}/", f"file://{location}", f"{location}/tree/b"):
        assert datasets.may_use(location, base)
