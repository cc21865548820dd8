"""A manifest that refers to files outside its table's folder is neither committed nor read.

Whoever may write a table's files could otherwise have the server read, with its own rights, what is not theirs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileReader
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError
from tests.services.wire import stream

import tiltyard
from tiltyard.storage import Storage, writing
from tiltyard.storage.datasets import Datasets
from tiltyard.storage.manifests.manifest_format import parse_manifest
from tiltyard.tables.rows import append_queue

ROWS, SECRET = pa.table({"n": [1, 2, 3]}), pa.table({"n": [42]})


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Tables of another owner: one below the root, one outside it."""
    locations = {"other": tmp_path / "root" / "other-1.lance", "outside": tmp_path / "outside.lance"}
    for place in locations.values():
        lance.write_dataset(SECRET, place)
    return locations


@pytest.fixture
def namespace(tmp_path: Path, places: dict[str, Path]) -> tiltyard.Namespace:
    return tiltyard.Namespace(str(tmp_path / "root"), jobs=0)


def stolen(location: str, place: Path, tmp_path: Path) -> bytes:
    """Stage a manifest of version 2 that refers to the data files of another table."""
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
    assert parse_manifest(content, 2).bases == [str(places[which])]
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


def test_insert_on_top_of_a_manifest_put_there_meanwhile_does_not_share_what_it_gave(
    namespace: tiltyard.Namespace, places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are in the table, and its latest version is not read."""
    namespace.create_table({"id": ["t"], "properties": {"tiltyard.managed_versioning": "false"}}, stream(ROWS))
    location = namespace.describe_table({"id": ["t"]}).location
    pending = iter([places["other"]])

    def write(storage: Storage, table: pa.Table, dataset: lance.LanceDataset, base: str) -> Any:
        written = writing.write_rows(storage, table, dataset, base)
        for victim in pending:
            put_foreign_rows(location, victim)
        return written

    monkeypatch.setattr(append_queue, "write_rows", write)
    namespace.insert_into_table({"id": ["t"]}, stream(ROWS))
    with pytest.raises(PermissionDeniedError, match="outside the folder"):
        namespace.count_table_rows({"id": ["t"]})


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
        assert not datasets.allows_base(location, base)
    for base in (location, f"{location}/", f"file://{location}", f"{location}/tree/b"):
        assert datasets.allows_base(location, base)


def put_foreign_rows(location: str, victim: Path) -> None:
    """Commit as a holder of credentials for a table's files can: change a row, refer to files of another table."""
    dataset = lance.dataset(location)
    dataset.add_bases([lance.DatasetBasePath(str(victim), name="theirs", is_dataset_root=True)])
    dataset.update({"n": "1"}, "n = 1")
    fragment = lance.dataset(victim).get_fragments()[0].metadata.to_json()
    fragment["files"][0]["base_id"] = next(iter(dataset.base_paths()))
    rows = lance.LanceOperation.Append([lance.FragmentMetadata.from_json(json.dumps(fragment))])
    lance.LanceDataset.commit(dataset, rows, read_version=dataset.version)


CHANGES: dict[str, Callable[[tiltyard.Namespace], object]] = {
    "update": lambda namespace: namespace.update_table({"id": ["t"], "updates": [["n", "n + 1000"]]}),
    "delete": lambda namespace: namespace.delete_from_table({"id": ["t"], "predicate": "n > 0"}),
    "merge": lambda namespace: namespace.merge_insert_into_table(
        {"id": ["t"], "on": ["n"], "when_matched_update_all": True, "when_not_matched_insert_all": True}, stream(ROWS)
    ),
}


@pytest.mark.parametrize("managed", ["true", "false"])
@pytest.mark.parametrize("change", CHANGES)
def test_change_that_meets_a_version_with_files_elsewhere_copies_none_of_their_rows(
    namespace: tiltyard.Namespace, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, change: str, managed: str
) -> None:
    """Lance's own retries run on the newest version, which the server has not checked."""
    namespace.create_table({"id": ["t"], "properties": {"tiltyard.managed_versioning": managed}}, stream(ROWS))
    location = namespace.describe_table({"id": ["t"]}).location
    opened, done = Datasets.open_for_writing, []

    def meanwhile(datasets: Datasets, at: str, *arguments: Any) -> lance.LanceDataset:
        dataset = opened(datasets, at, *arguments)
        if at == location and not done:
            done.append(put_foreign_rows(location, places["other"]))
        return dataset

    monkeypatch.setattr(Datasets, "open_for_writing", meanwhile)
    with pytest.raises(LanceNamespaceError, match=r"outside the folder|storage refuses"):
        CHANGES[change](namespace)
    assert done
    copies = [path for path in Path(location).glob("data/*") if 1042 in lance_rows(path) or 42 in lance_rows(path)]
    assert copies == []


def lance_rows(path: Path) -> list[int]:
    """Return the rows of a data file."""
    rows: list[int] = LanceFileReader(str(path)).read_all().to_table()["n"].to_pylist()
    return rows


def test_blob_that_is_a_file_elsewhere_is_not_followed(namespace: tiltyard.Namespace, tmp_path: Path) -> None:
    """A client can write such a column by itself, with a URI that only the server may read."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the server's own password")
    namespace.create_table({"id": ["t"], "properties": {"tiltyard.managed_versioning": "false"}}, stream(ROWS))
    location = namespace.describe_table({"id": ["t"]}).location
    rows = pa.table(
        [pa.array([1, 2]), lance.blob_array([secret.as_uri(), b"own"])],
        schema=pa.schema([pa.field("n", pa.int64()), lance.blob_field("b")]),
    )
    options = {"data_storage_version": "2.2", "allow_external_blob_outside_bases": True}
    lance.write_dataset(rows, location, mode="overwrite", **options)
    assert lance.dataset(location).take_blobs("b", indices=[0])[0].read() == secret.read_bytes()
    first = 1 << 32  # the overwritten fragment was 0
    for operation, fields in (("FetchTableBlobs", {"row_ids": [first]}), ("ReadTableBlob", {"row_id": first})):
        with pytest.raises(PermissionDeniedError, match="a file outside the table"):
            namespace.call(operation, {"id": ["t"], "column": "b", **fields})
    assert namespace.call("ReadTableBlob", {"id": ["t"], "column": "b", "row_id": first + 1}) == b"own"
    response = namespace.query_table({"id": ["t"], "vector": {"single_vector": []}, "k": 9})
    namespace.update_table({"id": ["t"], "predicate": "n = 1", "updates": [["n", "7"]]})
    namespace.merge_insert_into_table(
        {"id": ["t"], "on": ["n"], "when_matched_update_all": True}, stream(pa.table({"n": [7]}))
    )
    copy = namespace.call("CloneTable", {"id": ["c"], "source_location": location, "is_shallow": False})["location"]
    files = [path.read_bytes() for place in (location, copy) for path in Path(place).rglob("*") if path.is_file()]
    assert not [content for content in [response, *files] if b"password" in content]
    with pytest.raises(LanceNamespaceError, match="outside registered external bases"):
        namespace.insert_into_table({"id": ["t"]}, stream(rows))


def test_file_whose_name_leads_elsewhere_is_not_read(namespace: tiltyard.Namespace, places: dict[str, Path]) -> None:
    namespace.create_table({"id": ["t"], "properties": {"tiltyard.managed_versioning": "false"}}, stream(ROWS))
    location = namespace.describe_table({"id": ["t"]}).location
    victim = lance.dataset(places["other"]).get_fragments()[0].metadata.to_json()
    name = victim["files"][0]["path"]
    for path in (f"../../{places['other'].name}/data/{name}", f"{places['other']}/data/{name}"):
        victim["files"][0]["path"] = path
        rows = lance.LanceOperation.Append([lance.FragmentMetadata.from_json(json.dumps(victim))])
        lance.LanceDataset.commit(location, rows, read_version=lance.dataset(location).version)
        with pytest.raises(LanceNamespaceError, match="file of this table is missing"):
            namespace.query_table({"id": ["t"], "vector": {"single_vector": []}, "k": 9})


@pytest.mark.parametrize("branch", ["../../../other-1.lance", "x/../../../../other-1.lance", "/other-1.lance"])
def test_tag_of_a_branch_that_leads_elsewhere_is_not_read(
    namespace: tiltyard.Namespace, places: dict[str, Path], branch: str
) -> None:
    namespace.create_table({"id": ["t"]}, stream(ROWS))
    location = Path(namespace.describe_table({"id": ["t"]}).location)
    namespace.call("CreateTableTag", {"id": ["t"], "tag": "v", "version": 1})
    file = location / "_refs" / "tags" / "v.json"
    manifest = next((places["other"] / "_versions").glob("*.manifest"))
    fields = {"branch": branch, "version": 1, "manifestSize": manifest.stat().st_size}
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(LanceNamespaceError):
        namespace.call("CloneTable", {"id": ["c"], "source_location": str(location), "source_tag": "v"})
