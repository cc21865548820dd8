"""A catalog of every kind is exported, applied on an empty server, and exported again: the same to the byte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.declarations.conftest import Catalog, new_catalog
from tests.functions import definitions
from tiltyard.model.functions import parse_definition

PAGE = (Path(__file__).parents[2] / "docs/catalog-as-code.md").read_text()

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("no", pa.string(), metadata={"comment": "yes: no", "empty": ""}),
        pa.field("text", pa.large_string()),
        pa.field("x", pa.float64()),
        pa.field("vector", pa.list_(pa.float32(), 8)),
        pa.field("exact", pa.list_(pa.field("item", pa.float32(), nullable=False), 4)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("pairs", pa.map_(pa.string(), pa.int32())),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("plain", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.struct([("c", pa.date32())])))])),
        pa.field(
            "deep",
            pa.struct([pa.field("inner", pa.struct([pa.field("x", pa.bool_(), nullable=False)]), metadata={"k": "v"})]),
        ),
        pa.field("${env:HOME} ünïcode: [a]", pa.binary(16), metadata={"text": "a\nb", "env": "${env:HOME}"}),
    ]
)  # fmt: skip


def register_function(catalog: Catalog, folder: Path) -> str:
    """Register a function, with its file for others; return its digest."""
    fields: dict[str, Any] = json.loads(definitions.twice.registration_request.to_canonical_json())
    del fields["name"]
    with catalog.calls() as calls:
        calls.call("CreateFunction", id=["lab", "twice"], **fields)
        version = calls.call("DescribeFunction", id=["lab", "twice"])
    digest: str = version["image"]["manifest_digest"]
    (folder / "functions").mkdir()
    (folder / "functions" / f"{digest.removeprefix('sha256:')}.json").write_text(json.dumps(fields))
    assert parse_definition(fields)
    return digest


def fill(catalog: Catalog, folder: Path, elsewhere: Path) -> None:
    """Make something of every kind by operations."""
    with catalog.calls() as calls:
        call = calls.call
        call("CreateNamespace", id=["lab"], properties={"owner": "ann", "no": "1.0"})
        call("CreateNamespace", id=["lab", "a.b"])
        digest = register_function(catalog, folder)
        calls.write("CreateTable", COLUMNS.empty_table().to_reader(), id=["lab", "all"], properties={"team": "search"})
        version = call("DescribeFunction", id=["lab", "twice"])
        parameter = version["signature"]["inputs"][0]["name"]
        reference = {"name": "twice", "namespace_path": ["lab"], "version": "1", "manifest_digest": digest}
        binding = {
            "application": {
                "function": {**reference, "object_id": version["object_id"]},
                "inputs": [{"parameter": parameter, "kind": "column", "value": {"path": "id"}}],
            },
            "outputs": [{"result_field": "$value", "output_name": "doubled"}],
        }
        computed = [{"name": "next", "computed": "id + 1"}]
        call("AlterTableAddColumns", id=["lab", "all"], new_columns=computed, auto_refresh_enabled=True)
        call(
            "AlterTableAddColumns",
            id=["lab", "all"],
            new_columns=[{"name": "doubled", "all_null": True}],
            function=binding,
        )
        later = {"fields": [{"name": "later", "nullable": True, "type": {"type": "utf8"}}]}
        call("AlterTableAddColumns", id=["lab", "all"], new_columns=[], schema=later)
        call("SetTablePrimaryKey", id=["lab", "all"], columns=["id"])
        call("SetTableContract", id=["lab", "all"], checks=["not_null(text)"], on_failure="warn")
        call("UpdateTable", id=["lab", "all"], updates=[], properties={"tiltyard.upkeep": "off"})
        index = lambda name, column, kind, **options: call(  # noqa: E731
            "CreateTableIndex", id=["lab", "all"], name=name, column=column, index_type=kind, **options
        )
        index("no_idx", "no", "BTREE")
        index("text_idx", "text", "FTS", stem=False, language="German", with_position=True)
        index("vector_idx", "vector", "IVF_PQ", distance_type="cosine", num_partitions=2, num_sub_vectors=4)
        index("tags_idx", "tags", "LABEL_LIST")
        call("DeclareTable", id=["lab", "a.b", "declared"])
        call("CreateView", id=["lab", "z"], query='SELECT id, no\nFROM lab."all"\nWHERE id > 1')
        call("CreateView", id=["lab", "a"], query="SELECT id FROM lab.z")
        select = {"kind": "select", "source_query": "SELECT id, no FROM `lab$all` WHERE id > 7", "output_schema": ""}
        call(
            "CreateMaterializedView", id=["lab", "kept"], **select, auto_refresh=True, auto_refresh_interval_seconds=90
        )
        call("CreateRole", role="analysts")
        call("AddRoleMember", role="analysts", member="night", member_kind="group")
        call("AddRoleMember", role="analysts", member="ann")
        call("CreateRole", role="empty")
        call("GrantPrivileges", object_kind="server", grantee="group:x", privileges=["read"])
        call(
            "GrantPrivileges",
            object_kind="namespace",
            id=["lab"],
            grantee="analysts",
            grantee_kind="role",
            privileges=["all"],
        )
        call("GrantPrivileges", object_kind="table", id=["lab", "z"], grantee="ann", privileges=["use", "read"])
        masks = [{"column": "text", "mask": "hide"}, {"column": "no", "mask": "expression", "expression": "upper(no)"}]
        masks += [{"column": "price", "mask": "null"}]
        call(
            "SetTablePolicy", id=["lab", "all"], name="night", filter="id < 10", masks=masks, exempt_roles=["analysts"]
        )
        call("SetClassification", object_kind="namespace", id=["lab"], key="region", value="eu")
        call("SetClassification", object_kind="table", id=["lab", "all"], key="owner")
        for column, key, value in (("no", "pii", "mail"), ("no", "b.c", ""), ("deep.inner.x", "pii", "yes: no")):
            call("SetClassification", object_kind="column", id=["lab", "all"], column=column, key=key, value=value)
        hidden = {"mask": "expression", "expression": "upper(value())", "exempt_roles": ["analysts"]}
        call("SetClassificationPolicy", name="mails", key="pii", value="mail", **hidden)
        call("SetClassificationPolicy", name="europe", key="region", filter="in_group('eu')", mask="null")
        call("SetQuota", namespace=["lab"], resource="tables", soft=500, hard=1000)
        call("SetQuota", namespace=["lab"], resource="bytes", soft=10**12)
        call("SetQuota", namespace=[], resource="jobs", hard=1000)
        call("SetQuota", principal="group: x", resource="requests_per_minute", hard=600)
        call("SetProtection", object_kind="namespace", id=["lab"], kind="deletion")
        call("SetProtection", object_kind="table", id=["lab", "z"], kind="hold", reason="case 4711")
        needing = {"kind": "approval", "operations": ["DropTable", "UpdateTable"], "reason": "two: of us"}
        call("SetProtection", object_kind="table", id=["lab", "all"], **needing)
        call("MountCatalog", id=["others"], kind="dir", settings={"root": str(elsewhere)}, max_age_millis=2500)
        call(
            "CreatePublication", publication="outside", kind="dir", settings={"root": str(elsewhere)}, namespace=["lab"]
        )
        table = {"table": ["lab", "all"], "arguments": {"table": "lab$all", "compact": False}}
        call("CreateSchedule", id=["lab", "nightly"], job="optimize", cron="0 3 * * *", zone="Europe/Berlin", **table)
        call(
            "CreateSchedule",
            id=["lab", "often"],
            job="optimize",
            every_seconds=900,
            paused=True,
            catch_up=True,
            **table,
        )
        call(
            "CreateSchedule",
            id=["lab", "after"],
            job="optimize",
            on_commit=[["lab", "all"]],
            debounce_seconds=30,
            **table,
        )


def test_catalog_of_every_kind_is_the_same_after_export_and_apply(tmp_path: Path) -> None:
    elsewhere = tmp_path / "roots" / "other"
    elsewhere.mkdir(parents=True)
    roots = {"TILTYARD_ALLOWED_ROOTS": json.dumps([str(tmp_path / "roots")])}
    with new_catalog(tmp_path / "one", **roots) as one, new_catalog(tmp_path / "two", **roots) as two:
        fill(one, tmp_path, elsewhere)
        one.wait_for_indexes(["lab", "all"])
        text = one.export(tmp_path / "catalog.yaml")
        for line in ("distance_type: cosine", "num_sub_vectors: 4", "language: German"):
            assert line in text
        assert one.run("plan", tmp_path / "catalog.yaml").exit_code == 0
        assert two.run("plan", tmp_path / "catalog.yaml").exit_code == 2
        two.apply(tmp_path / "catalog.yaml")
        again = two.run("plan", tmp_path / "catalog.yaml")
        assert again.exit_code == 0, again.stdout
        two.wait_for_indexes(["lab", "all"])
        assert two.export(tmp_path / "again.yaml") == text
        assert two.run("plan", tmp_path / "again.yaml", "--delete").exit_code == 0
        assert two.apply(tmp_path / "catalog.yaml").startswith("Applied: 0 to create, 0 to change, 0 to delete")
        with two.calls() as calls:
            described = calls.call("DescribeTable", id=["lab", "all"], load_detailed_metadata=True)
        with one.calls() as calls:
            original = calls.call("DescribeTable", id=["lab", "all"], load_detailed_metadata=True)
        drop = lambda schema: re.sub(r'\\"object_id\\":\\"[^"]*\\"', "", json.dumps(schema, sort_keys=True))  # noqa: E731
        assert drop(described["schema"]) == drop(original["schema"])


def test_example_of_the_page_is_applied_and_then_there_is_nothing_to_do(tmp_path: Path, catalog: Catalog) -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "catalog.yaml"
    file.write_text(example)
    catalog.apply(file)
    planned = catalog.run("plan", file)
    assert (planned.exit_code, "0 to create, 0 to change" in planned.stdout) == (0, True), planned.stdout
    catalog.wait_for_indexes(["shop", "products"])
    assert catalog.run("plan", file).exit_code == 0
    exported = catalog.export(tmp_path / "exported.yaml")
    for line in ("      gross:", "    primary_key: [id]", "    refresh: every 5m", "    role:analysts: [use, read]"):
        assert line in exported


def test_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/catalog-as-code.md", "exec"), {})
