"""A folder that stock clients of Lance's directory namespace use at the same time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import lance
import lance_namespace
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    LanceNamespace,
    ListTablesRequest,
    RegisterTableRequest,
)
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog

MODES = Id(("both", "manifest", "listing"))


def stock_client(root: Path, mode: str) -> LanceNamespace:
    return lance_namespace.connect(
        "dir",
        {
            "root": str(root),
            "manifest_enabled": str(mode != "listing").lower(),
            "dir_listing_enabled": str(mode != "manifest").lower(),
        },
    )


def mounted(root: Path, mode: str) -> MountedCatalog:
    return open_catalog("dir", {"root": str(root), "mode": mode})


@pytest.mark.parametrize("mode", MODES)
def test_a_stock_client_and_the_mount_see_the_same_tables(tmp_path: Path, mode: str) -> None:
    stock, mount = stock_client(tmp_path, mode), mounted(tmp_path, mode)
    namespaces: list[Id] = [Id()]
    if mode != "listing":
        stock.create_namespace(CreateNamespaceRequest(id=["theirs"], properties={"a": "b"}))
        mount.create_namespace(Id(("ours",)), {"c": "d"})
        assert mount.list_namespaces(Id()).names == ("ours", "theirs")
        assert mount.get_namespace(Id(("theirs",))) == {"a": "b"}
        namespaces += [Id(("theirs",)), Id(("ours",))]
    for namespace in namespaces:
        stock.declare_table(DeclareTableRequest(id=[*namespace, "their_table"]))
        mount.declare_table(Id((*namespace, "our_table")), None, {})
        assert mount.list_tables(namespace).names == ("our_table", "their_table")
        assert stock.list_tables(ListTablesRequest(id=list(namespace))).tables == ["our_table", "their_table"]
        for name in ("their_table", "our_table"):
            table = mount.get_table(Id((*namespace, name)))
            described = stock.describe_table(DescribeTableRequest(id=list(table.id)))
            assert described.location is not None
            assert described.location.removeprefix("file://") == table.location
            lance.write_dataset(pa.table({"x": [1, 2]}), described.location)
            assert lance.dataset(table.location).count_rows() == 2
            assert mount.get_table(table.id).is_declared is False
        mount.deregister_table(Id((*namespace, "their_table")))
        stock.deregister_table(DeregisterTableRequest(id=[*namespace, "our_table"]))
        if mode == "both" and not namespace:  # the stock client's own deregistration does not last
            assert mount.list_tables(namespace).names == ("our_table",)
            mount.deregister_table(Id((*namespace, "our_table")))
        assert mount.list_tables(namespace).names == ()
        assert stock.list_tables(ListTablesRequest(id=list(namespace))).tables == []


def test_a_folder_of_tables_without_a_manifest_is_a_catalog(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / "old table.lance"))
    (tmp_path / "notes.txt").write_text("no table")
    (tmp_path / "folder").mkdir()
    for mode in ("both", "listing"):
        catalog = mounted(tmp_path, mode)
        assert catalog.list_tables(Id()).names == ("old table",)
        assert lance.dataset(catalog.get_table(Id(("old table",))).location).count_rows() == 1
    assert mounted(tmp_path, "manifest").list_tables(Id()).names == ()


def test_a_table_that_a_stock_client_registered_is_found_where_it_lies(tmp_path: Path) -> None:
    stock, mount = stock_client(tmp_path, "both"), mounted(tmp_path, "both")
    lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / "raw" / "of mine"))
    stock.create_namespace(CreateNamespaceRequest(id=["n"]))
    stock.register_table(RegisterTableRequest(id=["n", "t"], location="raw/of mine"))
    assert mount.get_table(Id(("n", "t"))).location == str(tmp_path / "raw" / "of mine")


def test_a_location_that_would_not_be_found_again_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    catalog = mounted(tmp_path, "both")
    catalog.create_namespace(Id(("n",)), {})
    before = sorted(tmp_path.iterdir())
    for table, location in (
        (Id(("t",)), f"{tmp_path}/elsewhere"),
        (Id(("n", "t")), "/somewhere/else"),
        (Id(("n", "t")), str(tmp_path)),
        (Id(("n", "t")), "s3://bucket/t"),
        (Id(("n", "t")), f"{tmp_path}/../t"),
    ):
        with pytest.raises(InvalidInputError):
            catalog.declare_table(table, location, {})
    with pytest.raises(UnsupportedOperationError, match="properties"):
        catalog.declare_table(Id(("n", "t")), f"{tmp_path}/elsewhere", {"a": "b"})
    with pytest.raises(UnsupportedOperationError, match="properties"):
        catalog.declare_table(Id(("t",)), None, {"a": "b"})
    assert catalog.list_tables(Id(("n",))).names == catalog.list_tables(Id()).names == ()
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_is_not_there_is_unavailable_not_empty(tmp_path: Path) -> None:
    catalog = mounted(tmp_path / "gone", "both")
    for call in (catalog.list_tables, catalog.list_namespaces, catalog.get_namespace):
        with pytest.raises(ServiceUnavailableError, match="is not there"):
            call(Id())
    with pytest.raises(ServiceUnavailableError):
        catalog.declare_table(Id(("t",)), None, {})
    assert not (tmp_path / "gone").exists()
    (tmp_path / "gone").mkdir()
    assert catalog.list_tables(Id()).names == ()


def test_a_name_of_two_parts_is_not_the_table_of_a_namespace(tmp_path: Path) -> None:
    catalog = mounted(tmp_path, "manifest")
    catalog.create_namespace(Id(("a",)), {})
    catalog.declare_table(Id(("a", "b")), None, {})
    with pytest.raises(TableNotFoundError):
        catalog.get_table(Id(("a$b",)))
    with pytest.raises(TableNotFoundError):
        catalog.deregister_table(Id(("a$b",)))


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """An object store that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_object_store_that_hangs_is_unavailable_within_the_timeout(silent_endpoint: str) -> None:
    options = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "aws_region": "us-east-1", "allow_http": "true"}
    catalog = open_catalog(
        "dir", {"root": "s3://bucket/w", "options": {**options, "aws_endpoint": silent_endpoint}, "timeout": 1}
    )
    started = time.monotonic()
    with pytest.raises(ServiceUnavailableError):
        catalog.list_tables(Id())
    assert time.monotonic() - started < 10
    catalog.close()


HOSTILE = ("x') OR (object_id != '/table/list", "it's", 'say "x"', "a\0b", "a\nb", "..", ".", "")


@pytest.mark.parametrize("mode", ["both", "manifest"])
def test_names_never_enter_the_expressions_by_which_lance_reads_its_manifest(tmp_path: Path, mode: str) -> None:
    catalog = mounted(tmp_path, mode)
    catalog.create_namespace(Id(("secret",)), {})
    catalog.declare_table(Id(("secret", "t")), None, {})
    for name in HOSTILE:
        for namespace in (Id((name,)), Id(("secret", name))):
            for read in (catalog.list_namespaces, catalog.get_namespace, catalog.list_tables, catalog.drop_namespace):
                with pytest.raises(NamespaceNotFoundError):
                    read(namespace)
            with pytest.raises(NamespaceNotFoundError):
                catalog.get_table(Id((*namespace, "t")))
            with pytest.raises(InvalidInputError):
                catalog.create_namespace(namespace, {})
            with pytest.raises(InvalidInputError):
                catalog.declare_table(Id((*namespace, "t")), None, {})
        table = Id(("secret", name))
        for look_up in (catalog.get_table, catalog.deregister_table):
            with pytest.raises((TableNotFoundError, NamespaceNotFoundError)):
                look_up(table)
        with pytest.raises(InvalidInputError):
            catalog.declare_table(table, None, {})
    assert catalog.list_tables(Id(("secret",))).names == ("t",)


@pytest.mark.parametrize("mode", ["both", "manifest", "listing"])
def test_names_that_others_have_given_and_nothing_can_carry_are_not_listed(tmp_path: Path, mode: str) -> None:
    if mode != "listing":
        stock = stock_client(tmp_path, mode)
        for name in ("it's", "plain"):
            stock.create_namespace(CreateNamespaceRequest(id=[name]))
        assert mounted(tmp_path, mode).list_namespaces(Id()).names == ("plain",)
    if mode != "manifest":
        for name in ("it's", "plain"):
            lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / f"{name}.lance"))
        assert mounted(tmp_path, mode).list_tables(Id()).names == ("plain",)
