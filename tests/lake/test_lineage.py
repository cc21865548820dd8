"""Lineage of a lake's tables, on a folder: recorded by jobs, followed up and down, without Spark."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    ServiceUnavailableError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

import tiltyard
from tiltyard.calls.caller import Caller
from tiltyard.change_feed.table_history import read_transaction
from tiltyard.model.lineage import CommitLineage, LineageSource


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the lake `root` and the file `raw/films.parquet`."""
    folder = tmp_path_factory.mktemp("lineage")
    (folder / "raw").mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), folder / "raw/films.parquet")
    return folder


@pytest.fixture(scope="module")
def lake(folder: Path) -> tiltyard.Lake:
    """Return a lake in which `films` is made of a file, `late` of films, and `last` of late."""
    lake = tiltyard.connect(folder / "root")
    films, late, last = lake.table("films"), lake.table("late"), lake.table("last")
    run = films.ingest(folder / "raw/films.parquet")
    late.ingest(films.dataset().uri, format="lance")
    last.ingest(late.dataset().uri, format="lance")
    films.upsert([{"id": 3}], on="id")
    assert run.version == 1
    return lake


def unchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def edges(lineage: tiltyard.lake.Lineage) -> list[tuple[str, str, str | None]]:
    return [(edge.source.name, edge.target.name, edge.job_kind) for edge in lineage.edges]


def test_lineage_upstream_has_jobs_and_sources_of_each_step(lake: tiltyard.Lake, folder: Path) -> None:
    found = lake.table("last").lineage()
    file = str(folder / "raw/films.parquet")
    assert edges(found) == [
        ("late", "last", "ingest"),
        ("films", "late", "ingest"),
        ("memory:builtins.list", "films", "upsert"),
        (file, "films", "ingest"),
    ]
    assert found.tables == ("late", "films") and set(found.uris) == {file, "memory:builtins.list"}
    assert [(node.name, node.depth) for node in found.nodes[:3]] == [("last", 0), ("late", 1), ("films", 2)]
    assert found.edges[0].code is None and not found.is_truncated
    assert found.edges[0].version == 1 and found.edges[0].created_at is not None
    assert "<td>films</td>" in found._repr_html_()


def test_lineage_has_the_digest_of_a_function(lake: tiltyard.Lake) -> None:
    table = lake.table("coded")
    table.ingest([{"id": 1}], udf=unchanged)
    (edge,) = table.lineage().edges
    assert len(edge.code or "") == 64 and edge.job_kind == "ingest"


def test_lineage_of_a_version_leaves_later_commits_out(lake: tiltyard.Lake, folder: Path) -> None:
    found = lake.table("films").lineage(version=1)
    assert edges(found) == [(str(folder / "raw/films.parquet"), "films", "ingest")]


def test_lineage_downstream_has_what_to_make_again(lake: tiltyard.Lake, folder: Path) -> None:
    assert lake.table("films").lineage("downstream").tables == ("late", "last")
    near = lake.table("films").lineage("downstream", depth=1)
    assert near.tables == ("late",) and near.is_truncated
    for uri in (folder / "raw/films.parquet", folder / "raw"):
        assert lake.lineage(uri).tables == ("films", "late", "last")
    assert lake.lineage(folder / "raw/other.parquet").tables == ()
    assert lake.table("last").lineage("downstream").edges == ()


def test_lineage_is_in_the_commit(lake: tiltyard.Lake, folder: Path) -> None:
    transaction = read_transaction(lake.table("films").dataset(), 1)
    assert transaction is not None
    lineage = CommitLineage.from_properties(transaction.transaction_properties)
    assert lineage is not None and lineage.kind == "ingest" and len(lineage.job) > 10
    assert lineage.sources == (LineageSource(str(folder / "raw/films.parquet")),)


def test_overwrite_leaves_nothing_of_earlier_sources(lake: tiltyard.Lake, folder: Path) -> None:
    table = lake.table("replaced")
    table.ingest(folder / "raw/films.parquet")
    table.ingest([{"id": 7}], mode="overwrite")
    assert table.lineage().uris == ("memory:builtins.list",)
    assert table.lineage(version=1).uris == (str(folder / "raw/films.parquet"),)
    assert "replaced" not in lake.lineage(folder / "raw/films.parquet").tables


def test_publication_is_indexed_once_it_is_published(
    lake: tiltyard.Lake, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), lake.publish() as change:
        change.table("published").ingest(folder / "raw/films.parquet")
    assert lake.table("published").lineage().uris == (str(folder / "raw/films.parquet"),)
    assert caplog.messages == []


def test_commit_that_cannot_be_indexed_is_a_warning(
    lake: tiltyard.Lake, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = Caller.call

    def fail_to_index(self: Caller, name: str, /, **request: Any) -> dict[str, Any]:
        if name == "RecordTableLineage":
            raise ServiceUnavailableError("away")
        return call(self, name, **request)

    monkeypatch.setattr(Caller, "call", fail_to_index)
    assert lake.table("unindexed").ingest(folder / "raw/films.parquet").version == 1
    assert [message for message in caplog.messages if "is not indexed: " in message]
    monkeypatch.undo()
    client = lake.catalog.caller(5)
    for recorded in (True, False):  # it can be made up for, once
        assert client.call("RecordTableLineage", id=["unindexed"], version=1)["recorded"] is recorded
    assert lake.table("unindexed").lineage().uris == (str(folder / "raw/films.parquet"),)


def test_bad_requests_are_refused_with_what_to_do(lake: tiltyard.Lake) -> None:
    with pytest.raises(TableNotFoundError):
        lake.table("none").lineage()
    films = lake.table("films")
    for version, error in ((0, InvalidInputError), (-1, InvalidInputError), (3, TableVersionNotFoundError)):
        with pytest.raises(error, match=f"version is {version}|no version {version}: the latest one is 2"):
            films.lineage(version=version)
    with pytest.raises(TableBranchNotFoundError):
        films.lineage(branch="none")
    with pytest.raises(InvalidInputError, match="uri is empty"):
        lake.lineage("")
    for depth in ("3", 3.0, True):
        sentence = f"^depth is {depth!r}: it has to be a whole number, not {type(depth).__name__}.$"
        for ask in (films.lineage, lambda depth: lake.lineage("/raw/films.parquet", depth=depth)):
            with pytest.raises(InvalidInputError, match=sentence):
                ask(depth=depth)
    with pytest.raises(InvalidInputError, match=r"^version is '1': it has to be a whole number"):
        films.lineage(version="1")  # type: ignore[arg-type]  # what people pass
    with pytest.raises(InvalidInputError, match="depth is 21: it is at least 1, and at most 20"):
        lake.table("films").lineage(depth=21)
    with pytest.raises(InvalidInputError, match="direction"):
        lake.table("films").lineage("sideways")  # type: ignore[arg-type]
    client = lake.catalog.caller(5)
    for request in ({}, {"id": ["films"], "uri": "/raw"}):
        with pytest.raises(InvalidInputError, match="and not both"):
            client.call("DescribeLineage", **request)
    with pytest.raises(InvalidInputError, match="leave direction, version and branch out"):
        client.call("DescribeLineage", uri="/raw", direction="upstream")
