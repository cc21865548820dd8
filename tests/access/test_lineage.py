"""Lineage under grants: what a caller cannot see has no name, and nobody can ask by it what there is."""

from __future__ import annotations

from typing import Any

import lance
import pytest
from lance_namespace.errors import NamespaceNotFoundError

from tests.access.conftest import Catalog
from tiltyard.model.columns.lineage import ColumnInput, ColumnOrigin, Origins
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.store.tables.lineage import LineageRecord


@pytest.fixture
def ann(catalog: Catalog) -> Any:
    """Return the client of ann, who has rights on `open$mid` alone: `shut$low` → `open$mid` → `shut$top`."""
    for name in ("open", "shut"):
        catalog.namespace(name)
    catalog.table("open", "mid")
    catalog.table("shut", "low")
    catalog.table("shut", "top")
    record(catalog, ("open", "mid"), ("shut", "low"))
    record(catalog, ("shut", "top"), ("open", "mid"))
    record(catalog, ("shut", "low"), "/raw/a.csv")
    catalog.grant("ann", "read,write", table=("open", "mid"))
    return catalog.as_("ann")


def record(
    catalog: Catalog, target: tuple[str, ...], source: tuple[str, ...] | str, columns: Origins | None = None
) -> None:
    name = source if isinstance(source, str) else "$".join(source)
    source_id = None if isinstance(source, str) else catalog.store.describe_table(source).id
    lineage = CommitLineage("ingest", "secret job", (LineageSource(name, version=1),), "secret code", columns)
    table_id = catalog.store.describe_table(target).id
    catalog.store.add_lineage(
        LineageRecord.of(
            lineage, table_id, "", 1, replaces=False, source_ids=(source_id,), principal="secret principal"
        )
    )


def follow(client: Any, direction: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found = client.call("DescribeLineage", {"id": ["open", "mid"], "direction": direction})
    return found["nodes"], found["edges"]


def test_hidden_tables_have_no_name_and_end_a_path(catalog: Catalog, ann: Any) -> None:
    nodes, edges = follow(ann, "upstream")
    assert [node["kind"] for node in nodes] == ["table", "hidden"] and "id" not in nodes[1]
    assert edges[0]["job_kind"] == "ingest"  # it is of a commit to a table that ann may see
    nodes, edges = follow(ann, "downstream")
    assert [node["kind"] for node in nodes] == ["table", "hidden"]
    assert edges == [{"source": nodes[0]["key"], "target": nodes[1]["key"]}]
    assert "secret" not in str(edges) and "shut" not in str(nodes)
    nodes, _ = follow(catalog.owner, "upstream")
    assert [node.get("id") or node["uri"] for node in nodes] == [["open", "mid"], ["shut", "low"], "/raw/a.csv"]


def test_files_read_by_hidden_tables_are_as_if_nothing_read_them(catalog: Catalog, ann: Any) -> None:
    for uri in ("/raw/a.csv", "/raw/none.csv"):
        found = ann.call("DescribeLineage", {"uri": uri})
        assert ([node["uri"] for node in found["nodes"]], found["edges"]) == ([uri], [])
    owned = catalog.owner.call("DescribeLineage", {"uri": "/raw/a.csv"})
    assert [node.get("id") for node in owned["nodes"]] == [None, ["shut", "low"], ["open", "mid"], ["shut", "top"]]


def test_dropped_table_is_a_node_without_a_name(catalog: Catalog, ann: Any) -> None:
    catalog.owner.drop_table({"id": ["shut", "low"]})
    nodes, _ = follow(ann, "upstream")
    assert [node["kind"] for node in nodes] == ["table", "dropped"]
    nodes, edges = follow(catalog.owner, "downstream")
    assert len(nodes) == 2 and len(edges) == 1
    catalog.owner.drop_table({"id": ["shut", "top"]})
    assert len(follow(catalog.owner, "downstream")[0]) == 1  # it is nothing to make again
    catalog.owner.drop_table({"id": ["open", "mid"]})
    with pytest.raises(NamespaceNotFoundError):
        follow(ann, "upstream")


def test_source_that_the_recorder_cannot_see_is_no_table(catalog: Catalog, ann: Any) -> None:
    secret, mid = (catalog.store.describe_table(path).location for path in (("shut", "top"), ("open", "mid")))
    lineage = CommitLineage("guess", "a job", (LineageSource(secret, secret), LineageSource(mid, mid)))
    dataset = lance.dataset(namespace_client=ann, table_id=["open", "mid"])
    operation = lance.LanceOperation.Append([])
    transaction = lance.Transaction(dataset.version, operation, transaction_properties=lineage.to_properties())
    version = lance.LanceDataset.commit(dataset, transaction).version
    assert ann.call("RecordTableLineage", {"id": ["open", "mid"], "version": version})["recorded"] is True
    table_id = catalog.store.describe_table(("open", "mid")).id
    guess = next(each for each in catalog.store.lineage_of(table_id, "", None, 9) if each.kind == "guess")
    assert [number is None for number in guess.source_ids] == [True, False] and guess.principal == "ann"


def test_columns_of_hidden_tables_are_not_told_of_nor_whether_they_read_a_column(catalog: Catalog, ann: Any) -> None:
    read = (ColumnOrigin("secret_copy", (ColumnInput(0, "id"),)),)
    catalog.table("shut", "other")
    record(catalog, ("shut", "other"), ("open", "mid"), read)
    columns = lance.dataset(namespace_client=ann, table_id=["open", "mid"]).schema.names
    for column in columns:
        request = {"id": ["open", "mid"], "column": column}
        down = ann.call("DescribeLineage", {**request, "direction": "downstream"})
        kinds = [node["kind"] for node in down["nodes"]]
        assert kinds == ["table", "hidden", "hidden"] and "secret_copy" not in str(down), column
        assert all("columns" not in edge and "why_unknown" not in edge for edge in down["edges"])
        up = ann.call("DescribeLineage", {**request, "direction": "upstream"})
        assert [node["kind"] for node in up["nodes"]] == ["table", "hidden"]
        assert [each["source_column"] for edge in up["edges"] for each in edge["columns"]] == ["*"]
    last = ann.call(
        "DescribeLineage", {"id": ["open", "mid"], "column": columns[0], "direction": "downstream", "depth": 1}
    )
    assert last["is_truncated"] is False
