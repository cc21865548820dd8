"""Plans: drift, what is kept without a word, what goes with it, stale plans, failures in between, and few rights."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard
from tests.declarations.conftest import Catalog, entries, write

SHOP = """\
namespaces:
  {0}: {{}}
tables:
  {0}.products:
    columns:
      id: int64
      title: {{type: string, metadata: {{lang: en}}}}
      price: float32
    properties: {{team: search}}
    contract: {{checks: [not_null(id)]}}
"""


def test_drift_is_shown_and_mended_and_nothing_is_taken_away_without_a_word(tmp_path: Path, catalog: Catalog) -> None:
    file = write(tmp_path / "catalog.yaml", SHOP.format("drift"))
    catalog.apply(file)
    table = ["drift", "products"]
    with catalog.calls() as calls:
        calls.write(
            "InsertIntoTable",
            pa.table({"id": [1], "title": ["a"], "price": pa.array([1.5], "float")}).to_reader(),
            id=table,
        )
        calls.call("AlterTableAddColumns", id=table, new_columns=[{"name": "double", "expression": "price * 2"}])
        updates = [{"path": "title", "metadata": {"lang": "de", "note": "x"}}]
        calls.call("UpdateFieldMetadata", id=table, updates=updates)
        calls.call("SetTableContract", id=table, checks=["not_null(id)", "not_null(title)"])
        calls.call("UpdateTable", id=table, updates=[], properties={"team": "others"})
    planned = catalog.run("plan", file)
    assert planned.exit_code == 2
    shown = planned.stdout.splitlines()
    assert "~ table drift.products" in shown and "    ~ columns.title.metadata.lang: de → en" in shown
    assert "    ~ properties.team: others → search" in shown
    kept = shown[shown.index("= table drift.products") :]
    assert [line.partition(":")[0].strip() for line in kept[1:3]] == [
        "- columns.title.metadata.note",
        "- columns.double",
    ]
    assert "Plan: 0 to create, 1 to change, 0 to delete" in planned.stdout
    catalog.apply(file)
    assert catalog.run("plan", file).exit_code == 0
    with catalog.calls() as calls:
        assert [field.name for field in calls.readable_schema(table)] == ["id", "title", "price", "double"]
    own = tmp_path / "own.yaml"
    own.write_text(
        file.read_text().replace("version: 1", "version: 1\nwithin: drift").replace("price: float32", "price: float64")
    )
    assert "    ~ columns.price.type: float → double" in catalog.run("plan", own).stdout
    assert catalog.run("plan", own).exit_code == 0
    catalog.apply(own, "--delete")
    with catalog.calls() as calls:
        schema = calls.readable_schema(table)
        assert (schema.names, schema.field("price").type) == (["id", "title", "price"], pa.float64())
        assert calls.call("CountTableRows", id=table) == 1


def test_members_privileges_policies_and_schedules_change_by_their_parts(tmp_path: Path, catalog: Catalog) -> None:
    text = """\
roles: {{team: {{members: [{members}]}}}}
namespaces: {{parts: {{}}}}
tables: {{parts.t: {{columns: {{id: int64, x: int64}}}}}}
policies: {{parts.t: {{p: {{filter: id < {bound}}}}}}}
grants: {{table:parts.t: {{role:team: [{privileges}]}}}}
schedules: {{parts.s: {{job: optimize, table: parts.t, {when}}}}}
"""
    file = tmp_path / "catalog.yaml"
    write(file, text.format(members="ann", bound=1, privileges="read", when="every: 1h"))
    catalog.apply(file)
    write(file, text.format(members="bob, group:g", bound=2, privileges="use, write", when="cron: 0 1 * * *"))
    assert json.loads(catalog.run("plan", file, "--json").stdout)["counts"] == {"create": 0, "change": 4, "delete": 0}
    catalog.apply(file)
    [role] = entries(catalog, "ListRoles", "roles")
    assert {each["name"] for each in role["members"]} == {"ann", "bob", "g"}
    [grant] = entries(catalog, "ListGrants", "grants", object_kind="table", id=["parts", "t"])
    assert grant["privileges"] == ["use", "read", "write"]
    [schedule] = entries(catalog, "ListSchedules", "schedules")
    assert (schedule["cron"], schedule.get("every_seconds")) == ("0 1 * * *", None)
    assert catalog.run("plan", file).exit_code == 0
    with catalog.calls() as calls:
        assert calls.call("ListTablePolicies", id=["parts", "t"])["policies"][0]["filter"] == "id < 2"


def test_classifications_and_protections_change_by_their_parts(tmp_path: Path, catalog: Catalog) -> None:
    tables = "namespaces:\n  guarded: {}\ntables:\n  guarded.t: {columns: {a: string, b: string}}\n"
    catalog.apply(write(tmp_path / "tables.yaml", tables))
    text = (
        "classifications:\n"
        "  namespace:guarded: {keys: {region: eu, kind: x}}\n"
        "  table:guarded.t: {columns: {a: {pii: mail, level: high}, b: {pii: ''}}}\n"
        "classification_policies:\n  mails: {key: pii, value: mail, expression: upper(value())}\n"
        "protections:\n"
        "  namespace:guarded: {deletion: kept, read_only: ''}\n"
    )
    catalog.apply(write(tmp_path / "c.yaml", text))
    assert catalog.run("plan", tmp_path / "c.yaml").exit_code == 0
    other = (
        text.replace("{region: eu, kind: x}", "{region: us}")
        .replace("{pii: mail, level: high}, b: {pii: ''}", "{pii: mail, level: low}")
        .replace("upper(value())", "lower(value())")
        .replace("{deletion: kept, read_only: ''}", "{deletion: kept longer}")
    )
    planned = catalog.run("plan", write(tmp_path / "c.yaml", other), "--delete")
    for line in (
        "~ protections of namespace:guarded",
        "    ~ deletion: kept → kept longer",
        "    - read_only: ",
        "    ~ keys.region: eu → us",
        "    - keys.kind: x",
        "    ~ columns.a.level: high → low",
        "    ~ expression: upper(value()) → lower(value())",
    ):
        assert line in planned.stdout, planned.stdout
    lines = planned.stdout.splitlines()
    assert (
        lines.index("    - read_only: ")
        < lines.index("    - keys.kind: x")
        < lines.index("    ~ deletion: kept → kept longer")
    ), "what is in the way is lifted first, and what protects is set last"
    catalog.apply(tmp_path / "c.yaml", "--delete")
    assert catalog.run("plan", tmp_path / "c.yaml", "--delete").exit_code == 0
    [kept] = entries(catalog, "ListProtections", "protections")
    assert (kept["kind"], kept["reason"]) == ("deletion", "kept longer")
    catalog.apply(write(tmp_path / "none.yaml", "classifications: {}\nclassification_policies: {}\n"), "--delete")
    with catalog.calls() as calls:
        assert calls.call("ListClassifications", object_kind="table", id=["guarded", "t"])["classifications"] == []
    assert entries(catalog, "ListClassificationPolicies", "policies") == []
    wrong = write(tmp_path / "wrong.yaml", "classifications:\n  server: {keys: {a: b}}\n")
    assert "'namespace:a' or 'table:a.b'" in catalog.run("plan", wrong).output
    catalog.apply(write(tmp_path / "lifted.yaml", "protections: {}\n"), "--delete")


def test_quotas_change_by_resource_and_are_for_administrators(tmp_path: Path, catalog: Catalog) -> None:
    catalog.apply(write(tmp_path / "namespaces.yaml", "namespaces: {limited: {}}\n"))
    text = "quotas:\n  namespace:limited: {tables: {hard: 5}, jobs: {soft: 1}}\n"
    catalog.apply(write(tmp_path / "q.yaml", text))
    assert catalog.run("plan", tmp_path / "q.yaml").exit_code == 0
    other = text.replace("{hard: 5}, jobs: {soft: 1}", "{soft: 4, hard: 6}") + "  principal:ann: {bytes: {hard: 9}}\n"
    planned = catalog.run("plan", write(tmp_path / "q.yaml", other), "--delete").stdout
    for line in ("~ quotas of namespace:limited", "    - jobs: ", "+ quotas of principal:ann"):
        assert line in planned, planned
    catalog.apply(tmp_path / "q.yaml", "--delete")
    assert catalog.run("plan", tmp_path / "q.yaml", "--delete").exit_code == 0
    listed = entries(catalog, "ListQuotas", "quotas")
    assert {(each.get("principal"), each["resource"], each.get("soft"), each.get("hard")) for each in listed} == {
        ("ann", "bytes", None, 9),
        (None, "tables", 4, 6),
    }
    wrong = write(
        tmp_path / "wrong.yaml", "quotas:\n  table:a: {tables: {hard: 1}}\n  principal:b: {smells: {hard: 1}}\n"
    )
    assert "quotas are of" in catalog.run("plan", wrong).output
    catalog.apply(write(tmp_path / "none.yaml", "quotas: {}\n"), "--delete")
    assert entries(catalog, "ListQuotas", "quotas") == []


def test_view_is_made_again_with_a_word_and_its_grants_come_back(tmp_path: Path, catalog: Catalog) -> None:
    text = """\
namespaces: {{seen: {{}}}}
tables: {{seen.t: {{columns: {{id: int64, x: int64}}}}}}
views: {{seen.b: {{sql: SELECT {0} FROM seen.t}}, seen.a: {{sql: SELECT * FROM seen.b}}}}
grants: {{table:seen.b: {{ann: [use, read]}}}}
"""
    file = write(tmp_path / "catalog.yaml", text.format("id"))
    catalog.apply(file)
    write(file, text.format("x"))
    planned = catalog.run("plan", file)
    assert (planned.exit_code, "= view seen.b" in planned.stdout) == (0, True)
    write(file, "within: seen\n" + text.format("x"))
    assert catalog.apply(file, "--delete").splitlines()[:2] == ["changed view seen.b", "created grants on table:seen.b"]
    assert catalog.run("plan", file, "--delete").exit_code == 0


def test_plan_that_has_changed_since_is_refused(tmp_path: Path, catalog: Catalog) -> None:
    file = write(tmp_path / "catalog.yaml", "namespaces: {stale: {}, stale.inner: {}}\n")
    digest = json.loads(catalog.run("plan", file, "--json").stdout)["digest"]
    assert f"Digest: {digest}" in catalog.run("apply", file, "--dry-run").stdout
    with catalog.calls() as calls:
        calls.call("CreateNamespace", id=["stale"])
    refused = catalog.run("apply", file, "--plan-digest", digest)
    assert (refused.exit_code, "Nothing was changed" in refused.stderr) == (1, True)
    new = json.loads(catalog.run("plan", file, "--json").stdout)["digest"]
    assert catalog.apply(file, "--plan-digest", new).splitlines()[0] == "created namespace stale.inner"


def test_apply_stops_at_what_fails_and_goes_on_when_it_is_run_again(tmp_path: Path, catalog: Catalog) -> None:
    text = "namespaces: {halt: {}}\ntables: {halt.a: {columns: {id: int64}}}\n"
    text += "views: {halt.v: {sql: SELECT no FROM halt.a}, halt.w: {sql: SELECT id FROM halt.a}}\n"
    file = write(tmp_path / "catalog.yaml", text)
    failed = catalog.run("apply", file)
    assert failed.exit_code not in (0, 2)
    assert failed.stdout.splitlines() == ["created namespace halt", "created table halt.a"]
    assert "2 of 4 changes were made. Create view halt.v: " in failed.stderr and "Apply again" in failed.stderr
    write(file, text.replace("SELECT no", "SELECT id"))
    assert catalog.apply(file).splitlines()[:2] == ["created view halt.v", "created view halt.w"]
    assert catalog.run("plan", file).exit_code == 0


def test_values_of_the_environment_are_used_and_not_shown(tmp_path: Path, catalog: Catalog) -> None:
    text = "namespaces:\n  env: {properties: {a: '${env:SOME_VALUE}', b: '$${env:SOME_VALUE} $id'}}\n"
    file = write(tmp_path / "catalog.yaml", text)
    missing = catalog.run("plan", file)
    assert (missing.exit_code, "line 3: namespaces.env.properties.a: the environment variable" in missing.stderr) == (
        1,
        True,
    )
    environ = {"SOME_VALUE": "hushhush"}
    for options in ((), ("--json",)):
        planned = catalog.run("plan", file, *options, environ=environ)
        assert planned.exit_code == 2 and "hushhush" not in planned.output
    assert catalog.run("apply", file, environ=environ).exit_code == 0
    with catalog.calls() as calls:
        properties = calls.call("DescribeNamespace", id=["env"])["properties"]
    assert properties == {"a": "hushhush", "b": "${env:SOME_VALUE} $id"}
    assert "b: $${env:SOME_VALUE} $id" in catalog.export(tmp_path / "out.yaml")


def test_principal_with_few_rights_exports_what_it_sees_and_changes_nothing_else(
    tmp_path: Path, catalog: Catalog
) -> None:
    text = "namespaces: {{{0}: {{properties: {{p: secretive}}}}}}\n"
    text += "tables: {{{0}.t: {{columns: {{id: int64}}}}, {0}.u: {{columns: {{id: int64}}}}}}\n"
    for name in ("open", "hidden"):
        catalog.apply(write(tmp_path / "catalog.yaml", text.format(name)))
    with catalog.calls() as calls:
        calls.call("GrantPrivileges", object_kind="table", id=["open", "t"], grantee="ann", privileges=["read"])
        calls.call("CreateRole", role="unseen")
    result = catalog.run("export", tmp_path / "ann.yaml", name="ann")
    assert result.exit_code == 0
    exported = (tmp_path / "ann.yaml").read_text()
    assert "open.t" in exported
    for word in ("open.u", "hidden", "secretive", "unseen", "roles:", "mounts:", "policies:"):
        assert word not in exported
    for section in ("roles", "mounts", "publications", "policies", "grants"):
        assert f"left out: {section}" in result.stderr
    before = catalog.export(tmp_path / "before.yaml")
    attempts = {
        "roles: {mine: {}}": "the section 'roles', which cannot be compared",
        "policies: {open.t: {p: {filter: id > 0}}}": "the section 'policies', which cannot be compared",
        "grants: {table:open.t: {ann: [all]}}": "grants on table:open.t, which cannot be compared",
        "grants: {table:open.u: {ann: [all]}}": "0 of ",
        "namespaces: {new: {}}": "0 of ",
        "tables: {hidden.t: {columns: {id: string}}}": "0 of ",
        "tables: {open.t: {columns: {id: int64, more: string}}}": "0 of ",
        "views: {open.v: {sql: SELECT id FROM hidden.t}}": "0 of ",
    }
    for content, sentence in attempts.items():
        refused = catalog.run("apply", write(tmp_path / "try.yaml", f"{content}\n"), "--delete", name="ann")
        assert refused.exit_code not in (0, 2) and sentence in refused.stderr, (content, refused.output)
    deleted = catalog.run("apply", write(tmp_path / "try.yaml", "within: open\ntables: {}\n"), "--delete", name="ann")
    assert deleted.exit_code not in (0, 2) and "0 of " in deleted.stderr
    assert catalog.export(tmp_path / "after.yaml") == before


def test_python_plans_and_applies_on_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "catalog.yaml", SHOP.format("shop"))
    with tiltyard.connect(tmp_path / "root") as lake:
        plan = lake.plan_catalog(file)
        assert plan.summary == "2 to create, 0 to change, 0 to delete"
        plan.apply()
        assert not lake.plan_catalog(file).changes
        assert lake.plan_catalog(write(tmp_path / "none.yaml", "tables: {}\n"), delete=True).summary.endswith(
            "1 to delete"
        )
        assert "shop.products" in lake.export_catalog()


WRONG = {
    "version: 2\n": "line 1: version: write 'version: 1'",
    "- version: 1\n": "a catalog is a mapping",
    "shapes: {}\n": "line 2: shapes: there is no such section",
    "namespaces:\n  a: {}\n  a: {}\n": "line 4: namespaces.a: this key occurs twice",
    "namespaces:\n  a: {property: {}}\n": "line 3: namespaces.a: Object contains unknown field `property`",
    "namespaces: &n {}\n": "line 2: anchors and aliases",
    "namespaces: !!python/object/apply:os.getcwd []\n": "this is not YAML",
    "namespaces:\n  a: [\n": "this is not YAML",
    "tables:\n  t:\n    columns:\n      id: in64\n": "line 5: tables.t.columns.id.type: 'in64' is not a type",
    "tables:\n  t:\n    columns:\n      id: {nulable: true}\n": "line 5: tables.t.columns.id: Object contains unknown",
    "tables:\n  t:\n    columns: {a: int8}\n    indexes:\n      i: {column: a, type: TREE}\n": "line 6: tables.t.index",
    "grants:\n  table:t: {ann: [reed]}\n": "line 3: grants.table:t.ann: 'reed' is not a privilege",
    "namespaces:\n  'a..b': {}\n": "line 3: namespaces.a..b: a..b: a name is empty",
    "views:\n  v: {sql: SELECT 1, refresh: every 5m}\n": "line 3: views.v: only a materialized view",
    "functions:\n  f: {versions: ['sha256:00']}\n": "line 3: functions.f.versions[0]: 'sha256:00' is no digest",
    f"functions:\n  f: {{versions: ['sha256:{'0' * 64}']}}\n": "The server has no version of the function f",
    "tables:\n  t: {properties: {tiltyard.contract: x}}\n": "this property is the server's to set",
    "within: a\nnamespaces: {a.b: {}, b: {}}\n": "line 3: namespaces.b: this is not within a",
    "within: a\nroles: {r: {}}\n": "line 3: roles.r: this is not within a",
    "roles: " + "[" * 70 + "]" * 70 + "\n": "line 2: this is nested more than 64 deep",
}


def test_what_is_wrong_is_one_sentence_with_the_line_and_nothing_is_changed(tmp_path: Path, catalog: Catalog) -> None:
    before = catalog.export(tmp_path / "before.yaml")
    file = tmp_path / "wrong.yaml"
    for text, sentence in WRONG.items():
        file.write_text(text if text.startswith(("version", "- version")) else f"version: 1\n{text}")
        refused = catalog.run("apply", file)
        assert refused.exit_code == 1 and sentence in refused.stderr, (text, refused.output)
        assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    file.write_bytes(b"version: 1\n\xff")
    assert "is no text in UTF-8" in catalog.run("plan", file).stderr
    assert "cannot be read" in catalog.run("plan", tmp_path / "none.yaml").stderr
    assert catalog.export(tmp_path / "after.yaml") == before


def test_property_of_a_namespace_that_differs_is_refused_before_anything_is_changed(
    tmp_path: Path, catalog: Catalog
) -> None:
    catalog.apply(write(tmp_path / "catalog.yaml", "namespaces: {fixed: {properties: {a: '1'}}}\n"))
    file = write(tmp_path / "catalog.yaml", "namespaces: {fixed: {properties: {a: '2'}}, never: {}}\n")
    refused = catalog.run("apply", file)
    assert refused.exit_code == 1 and "properties.a cannot be changed" in refused.stderr
    with catalog.calls() as calls, pytest.raises(Exception, match="never"):
        calls.call("DescribeNamespace", id=["never"])


def test_export_takes_a_file_of_yaml_and_nothing_else(tmp_path: Path, catalog: Catalog) -> None:
    file = tmp_path / "catalog.yaml"
    assert catalog.run("export", file).exit_code == 0
    assert catalog.run("export", file).exit_code == 7
    assert catalog.run("export", file, "--force", "--limit", "1").exit_code == 2
    assert catalog.run("export", "a.table").exit_code == 2


def test_parts_of_a_table_change_in_the_order_that_they_need(tmp_path: Path, catalog: Catalog) -> None:
    text = "within: made\nnamespaces: {{made: {{}}}}\ntables:\n  made.t:\n    columns: {{{columns}}}\n{rest}"
    file = write(
        tmp_path / "catalog.yaml", text.format(columns="id: int64, old: string, c: {computed: id + 1}", rest="")
    )
    catalog.apply(file)
    rest = "    primary_key: [id]\n    contract: {checks: [unique(id), not_null(new)], on_failure: warn}\n"
    rest += "    indexes: {i: {column: old, type: BITMAP}, f: {column: new, type: FTS, options: {stem: true}}}\n"
    columns = "id: int64, old: {type: string, metadata: {k: v}}, new: string, c: {computed: id + 2}, 'a b': float64"
    write(file, text.format(columns=columns, rest=rest))
    assert "= table made.t\n    ~ columns.c.computed: id + 1 → id + 2\n" in catalog.run("plan", file).stdout
    catalog.apply(file, "--delete")
    catalog.wait_for_indexes(["made", "t"])
    assert catalog.run("plan", file, "--delete").exit_code == 0, catalog.run("plan", file, "--delete").stdout
    changed = (
        rest.replace("type: BITMAP", "type: BTREE").replace("stem: true", "stem: false").replace("unique(id), ", "")
    )
    write(file, text.format(columns=columns, rest=changed.replace("    primary_key: [id]\n", "")))
    catalog.apply(file, "--delete")
    catalog.wait_for_indexes(["made", "t"])
    kinds = {
        each["index_name"]: each["index_type"]
        for each in entries(catalog, "ListTableIndices", "indexes", id=["made", "t"])
    }
    assert (kinds["i"], kinds["f"]) == ("BTREE", "FTS")
    write(file, text.format(columns="id: int64", rest=""))
    catalog.apply(file, "--delete")
    assert entries(catalog, "ListTableIndices", "indexes", id=["made", "t"]) == []
    assert catalog.run("plan", file, "--delete").exit_code == 0
    write(file, "within: made\nnamespaces: {}\ntables: {}\n")
    assert catalog.apply(file, "--delete").splitlines()[:2] == ["deleted table made.t", "deleted namespace made"]
