"""Code declarations of columns: removed from inserted rows, and in a staged manifest only with `run_udfs`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError, UnsupportedOperationError
from msgspec import structs
from tests.tables.bodies import small
from tests.tables.commits.test_commit import location, stage
from tests.tables.served import Server, ask

from tiltyard.context import Context
from tiltyard.model.columns.computed_columns import UdfDeclaration, read_declaration
from tiltyard.model.principals import Principal, Privilege
from tiltyard.model.spec import models
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.commits import commit
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.insert import insert_into_table

IMAGE = "registry.example/functions:3"
CODE = UdfDeclaration("f", "1", "YQ==", ("a",), image=IMAGE).metadata()
ROWS = pa.table({"a": pa.array([1, 2, 3])})
TOLD = pa.table(
    [ROWS["a"]], schema=pa.schema([pa.field("a", pa.int64(), metadata={**CODE, "unit": "m"})], metadata={"of": "all"})
)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    """A server that allows clients' code, with the table t."""
    root = tmp_path / "root"
    root.mkdir()
    server = Server(root, udfs=True, udf_images=(IMAGE,))
    server.create("t", ROWS)
    yield server
    server.services.close()


def asking(server: Server, *privileges: Privilege) -> Context:
    """Return the context of ann, who has these privileges on t."""
    number = server.services.store.describe_table(("t",)).id
    server.services.store.grant("principal:ann", TABLE, number, sum(privileges), "test")
    server.services.rights_cache.refresh_next()
    return structs.replace(server.ctx, principal=Principal("ann"))


def staged(server: Server, scratch: Path, version: int, metadata: dict[str, str]) -> models.CreateTableVersionRequest:
    """Stage a version of t that declares code."""
    folder, copy = location(server, "t"), scratch / uuid4().hex
    shutil.copytree(folder, copy)
    lance.dataset(copy).update_field_metadata({"a": metadata})
    shutil.copytree(copy / "_transactions", folder / "_transactions", dirs_exist_ok=True)
    name = f"{2**64 - 1 - version}.manifest"
    path = folder / "_versions" / f"{name}-{uuid4()}"
    shutil.copy(copy / "_versions" / name, path)
    return asked(version, str(path))


def asked(version: int, path: str) -> models.CreateTableVersionRequest:
    return ask(models.CreateTableVersionRequest, id="t", version=version, manifest_path=path, naming_scheme="V2")


@pytest.mark.parametrize("way", ["create", "overwrite", "declared"])
def test_rows_declare_no_code_and_keep_their_other_metadata(server: Server, way: str) -> None:
    body = small(TOLD)
    if way == "overwrite":
        insert_into_table(server.ctx, ask(models.InsertIntoTableRequest, id="t", mode="overwrite"), body)
    elif way == "create":
        create_table(server.ctx, ask(models.CreateTableRequest, id="u"), body)
    else:
        server.declare("u")
        insert_into_table(server.ctx, ask(models.InsertIntoTableRequest, id="u"), body)
    dataset = server.open("t" if way == "overwrite" else "u")
    assert dataset.schema.field("a").metadata == {b"unit": b"m"}
    assert dataset.to_table().column("a").to_pylist() == [1, 2, 3]


def test_staged_manifest_with_code_needs_to_run_code_over_the_table(server: Server, tmp_path: Path) -> None:
    writer = asking(server, Privilege.WRITE)
    with pytest.raises(PermissionDeniedError, match="run_udfs"):
        commit.create_table_version(writer, staged(server, tmp_path, 2, CODE))
    entry = staged(server, tmp_path, 2, CODE)
    batch = models.BatchCreateTableVersionsRequest(
        entries=[ask(models.CreateTableVersionEntry, id="t", version=2, manifest_path=entry.manifest_path)]
    )
    with pytest.raises(PermissionDeniedError, match="run_udfs"):
        commit.batch_create_table_versions(writer, batch)
    assert server.open("t").version == 1
    commit.create_table_version(asking(server, Privilege.RUN_UDFS), staged(server, tmp_path, 2, CODE))
    assert isinstance(read_declaration(server.open("t").schema.field("a").metadata), UdfDeclaration)


def test_staged_manifest_with_the_code_that_is_there_needs_to_write_alone(server: Server, tmp_path: Path) -> None:
    commit.create_table_version(server.ctx, staged(server, tmp_path, 2, CODE))
    writer = asking(server, Privilege.WRITE)
    path = stage(location(server, "t"), 3, tmp_path, ROWS)
    assert commit.create_table_version(writer, asked(3, path)).version is not None
    other = {**CODE, "tiltyard.udf.code": "Yg=="}
    with pytest.raises(PermissionDeniedError, match="run_udfs"):
        commit.create_table_version(writer, staged(server, tmp_path, 4, other))


def test_staged_manifest_with_code_is_refused_where_code_is_off_or_for_another_image(
    server: Server, tmp_path: Path
) -> None:
    other = {**CODE, "tiltyard.udf.image": "elsewhere:1"}
    with pytest.raises(InvalidInputError, match="elsewhere:1"):
        commit.create_table_version(server.ctx, staged(server, tmp_path, 2, other))
    closed = replace(server.services, settings=replace(server.services.settings, udfs=False))
    with pytest.raises(UnsupportedOperationError, match="udfs"):
        commit.create_table_version(structs.replace(server.ctx, services=closed), staged(server, tmp_path, 2, CODE))
    assert server.open("t").version == 1
