"""Authorization: an object that the caller cannot see does not exist; an operation on a visible one is denied."""

from __future__ import annotations

from typing import Any

import lance
import pytest
from lance_namespace.errors import (
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TransactionNotFoundError,
)

import tiltyard
from tests.access.conftest import ROWS_AS_STREAM, Catalog
from tiltyard.access.rights import Rights
from tiltyard.model.principals import Principal
from tiltyard_conformance.cases import ROWS


def error_of(call: Any, *arguments: Any) -> LanceNamespaceError:
    with pytest.raises(LanceNamespaceError) as raised:
        call(*arguments)
    return raised.value


def test_table_that_may_not_be_seen_is_answered_as_a_missing_one(catalog: Catalog) -> None:
    catalog.namespace("s")
    for name in ("mine", "other"):
        catalog.table("s", name)
    catalog.grant("ann", "read", table=("s", "mine"))
    ann = catalog.as_("ann")
    assert ann.count_table_rows({"id": ["s", "mine"]}).count == 3
    hidden, missing = (error_of(ann.describe_table, {"id": ["s", name]}) for name in ("other", "othex"))
    assert type(hidden) is type(missing) is TableNotFoundError
    assert str(hidden) == str(missing).replace("othex", "other")


def test_table_in_a_namespace_that_may_not_be_seen_is_answered_as_one_in_a_missing_namespace(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.table("s", "t")
    ann = catalog.as_("ann")
    errors = [
        error_of(ann.describe_table, {"id": path})
        for path in (["s", "t"], ["s", "missing"], ["x", "t"], ["x", "missing"])
    ]
    assert {type(error) for error in errors} == {NamespaceNotFoundError}
    assert {str(error).replace("x", "s") for error in errors} == {"Namespace not found: s"}


def test_what_may_be_seen_but_not_done_is_permission_denied(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.table("s", "t")
    catalog.grant("ann", "read", namespace=("s",))
    ann = catalog.as_("ann")
    assert "write" in str(error_of(ann.insert_into_table, {"id": ["s", "t"]}, ROWS_AS_STREAM))
    for call in (
        lambda: ann.drop_table({"id": ["s", "t"]}),
        lambda: ann.drop_namespace({"id": ["s"]}),
        lambda: ann.create_table({"id": ["s", "u"]}, ROWS_AS_STREAM),
        lambda: ann.create_namespace({"id": ["s", "u"]}),
        lambda: ann.delete_from_table({"id": ["s", "t"], "predicate": "true"}),
        lambda: ann.collect_garbage({}),
    ):
        assert type(error_of(call)) is PermissionDeniedError
    assert catalog.owner.count_table_rows({"id": ["s", "t"]}).count == 3


def test_namespace_on_the_way_to_a_granted_table_is_seen_by_its_name_alone(catalog: Catalog) -> None:
    for path in (("s",), ("s", "deep"), ("s", "other"), ("z",)):
        catalog.namespace(*path)
    catalog.table("s", "deep", "t")
    catalog.table("s", "deep", "u")
    catalog.grant("ann", "read", table=("s", "deep", "t"))
    ann = catalog.as_("ann")
    assert ann.list_namespaces({"id": []}).namespaces == ["s"]
    assert ann.list_namespaces({"id": ["s"]}).namespaces == ["deep"]
    assert ann.list_tables({"id": ["s"]}).tables == []
    assert ann.list_tables({"id": ["s", "deep"]}).tables == ["t"]
    assert ann.list_all_tables({}).tables == ["s$deep$t"]
    ann.namespace_exists({"id": ["s"]})
    assert type(error_of(ann.describe_namespace, {"id": ["s"]})) is PermissionDeniedError
    assert type(error_of(ann.list_namespaces, {"id": ["z"]})) is NamespaceNotFoundError


def test_list_of_all_tables_is_a_fast_read_unless_many_namespaces_inherit(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiltyard.access.rights.FEW_NAMESPACES", 2)
    for path in (("s",), ("s", "deep")):
        catalog.namespace(*path)
    for name in ("t", "u", "v"):
        catalog.table("s", name)
        catalog.grant("ann", "read", table=("s", name))
    ann = Principal("ann", (), "test")
    assert Rights(catalog.store, ann).has_few_namespaces
    catalog.grant("ann", "read", namespace=("s", "deep"))
    assert Rights(catalog.store, ann).has_few_namespaces
    catalog.grant("ann", "read", namespace=("s",))
    assert not Rights(catalog.store, ann).has_few_namespaces


def test_nobody_without_grants_sees_anything(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.table("t")
    ann = catalog.as_("ann")
    assert ann.list_namespaces({"id": []}).namespaces == ann.list_tables({"id": []}).tables == []
    assert ann.list_all_tables({}).tables == []
    assert type(error_of(ann.table_exists, {"id": ["t"]})) is TableNotFoundError
    assert type(error_of(ann.create_namespace, {"id": ["n"]})) is PermissionDeniedError


def test_creator_owns_what_it_made_and_nobody_else_sees_it(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.grant("ann", "create", namespace=("s",))
    ann = catalog.as_("ann")
    ann.create_table({"id": ["s", "t"]}, ROWS_AS_STREAM)
    ann.create_namespace({"id": ["s", "n"]})
    ann.create_table({"id": ["s", "n", "t"]}, ROWS_AS_STREAM)
    assert ann.count_table_rows({"id": ["s", "t"]}).count == 3
    ann.drop_table({"id": ["s", "t"]})
    assert catalog.as_("bob").list_all_tables({}).tables == []
    new_table_id = catalog.table("s", "t")
    assert catalog.store.grants_on("table", new_table_id, None, 5) == []
    assert type(error_of(ann.count_table_rows, {"id": ["s", "t"]})) is PermissionDeniedError


def test_publish_a_new_table_needs_no_more_than_to_create_it(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.grant("ann", "create", namespace=("s",))
    ann = catalog.as_("ann")
    with tiltyard.publish(ann) as tables:
        lance.write_dataset(ROWS, namespace_client=tables, table_id=["s", "t"])
    assert ann.count_table_rows({"id": ["s", "t"]}).count == ROWS.num_rows
    assert catalog.store.claim_due_deletions(9, 1000) == []
    ann.drop_table({"id": ["s", "t"]})


def test_location_that_was_reserved_for_somebody_is_nobody_elses(catalog: Catalog) -> None:
    catalog.namespace("s")
    for name in ("ann", "bob"):
        catalog.grant(name, "create", namespace=("s",))
    ann, bob = catalog.as_("ann"), catalog.as_("bob")
    operations: list[dict[str, Any]] = [{"declare_table": {"id": ["s", "t"]}}, {"deregister_table": {"id": ["s", "t"]}}]
    location = ann.batch_commit_tables({"operations": operations}).results[0].declare_table.location
    named = {"id": ["s", "u"], "location": location}
    assert type(error_of(bob.batch_commit_tables, {"operations": [{"declare_table": named}]})) is PermissionDeniedError
    assert type(error_of(ann.declare_table, named)) is PermissionDeniedError  # alone there is no need for it
    next_to = named | {"location": f"{location}-beside"}
    assert (
        type(error_of(ann.batch_commit_tables, {"operations": [{"declare_table": next_to}]})) is PermissionDeniedError
    )
    ann.batch_commit_tables({"operations": [{"declare_table": named}]})
    assert ann.describe_table({"id": ["s", "u"]}).location == location
    assert type(error_of(ann.batch_commit_tables, {"operations": [{"declare_table": named | {"id": ["s", "v"]}}]})) is (
        PermissionDeniedError
    )


def test_create_table_over_one_that_is_there_needs_rights_on_it(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.table("s", "t")
    catalog.grant("ann", "create", namespace=("s",))
    ann = catalog.as_("ann")
    assert type(error_of(ann.create_table, {"id": ["s", "t"]}, ROWS_AS_STREAM)) is TableAlreadyExistsError
    overwriting = {"id": ["s", "t"], "mode": "Overwrite"}
    assert type(error_of(ann.create_table, overwriting, ROWS_AS_STREAM)) is PermissionDeniedError
    assert ann.create_table({"id": ["s", "t"], "mode": "ExistOk"}, ROWS_AS_STREAM).version == 1
    catalog.grant("ann", "write,alter", table=("s", "t"))
    assert ann.create_table(overwriting, ROWS_AS_STREAM).version == 2


def test_location_of_ones_own_choice_is_for_administrators(catalog: Catalog, tmp_path: Any) -> None:
    catalog.namespace("s")
    catalog.grant("ann", "all", namespace=("s",))
    ann = catalog.as_("ann")
    location = str(tmp_path / "root" / "elsewhere")
    for call in (
        lambda: ann.declare_table({"id": ["s", "t"], "location": location}),
        lambda: ann.register_table({"id": ["s", "t"], "location": location}),
        lambda: ann.create_table({"id": ["s", "t"], "location": location}, ROWS_AS_STREAM),
        lambda: ann.batch_commit_tables({"operations": [{"declare_table": {"id": ["s", "t"], "location": location}}]}),
    ):
        assert type(error_of(call)) is PermissionDeniedError
    catalog.grant("ann", "administer")
    assert ann.declare_table({"id": ["s", "t"], "location": location}).location


def test_clone_reads_its_source(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.table("secret")
    catalog.table("open")
    catalog.grant("ann", "create", namespace=("s",))
    catalog.grant("ann", "read", table=("open",))
    ann = catalog.as_("ann")
    secret, opened = (catalog.store.describe_table((name,)).location for name in ("secret", "open"))
    hidden = error_of(ann.call, "CloneTable", {"id": ["s", "a"], "source_location": secret})
    missing = error_of(ann.call, "CloneTable", {"id": ["s", "a"], "source_location": secret + "x"})
    inside = error_of(ann.call, "CloneTable", {"id": ["s", "a"], "source_location": secret + "/tree/b"})
    assert {type(error) for error in (hidden, missing, inside)} == {PermissionDeniedError}
    assert str(hidden) == str(missing) == str(inside)
    assert ann.call("CloneTable", {"id": ["s", "a"], "source_location": opened})


def test_rename_needs_rights_on_both_sides(catalog: Catalog) -> None:
    for name in ("s", "d"):
        catalog.namespace(name)
    catalog.table("s", "t")
    catalog.grant("ann", "alter", table=("s", "t"))
    ann = catalog.as_("ann")
    within = {"id": ["s", "t"], "new_table_name": "u"}
    moving = within | {"new_namespace_id": ["d"]}
    assert type(error_of(ann.rename_table, within)) is PermissionDeniedError
    catalog.grant("ann", "create", namespace=("s",))
    ann.rename_table(within)
    assert ann.describe_table({"id": ["s", "u"]}).location  # the grant moved along
    moving["id"] = ["s", "u"]
    catalog.grant("ann", "create", namespace=("d",))
    assert "manage_grants" in str(error_of(ann.rename_table, moving))
    catalog.grant("ann", "drop,manage_grants", table=("s", "u"))
    ann.rename_table(moving | {"new_table_name": "v"})
    assert ann.list_tables({"id": ["d"]}).tables == ["v"]


def test_rename_into_a_namespace_that_may_not_be_seen_is_answered_as_into_a_missing_one(catalog: Catalog) -> None:
    for name in ("s", "d"):
        catalog.namespace(name)
    catalog.table("s", "t")
    catalog.grant("ann", "all", namespace=("s",))
    errors = [
        error_of(catalog.as_("ann").rename_table, {"id": ["s", "t"], "new_table_name": "u", "new_namespace_id": [name]})
        for name in ("d", "x")
    ]
    assert {type(error) for error in errors} == {NamespaceNotFoundError}
    assert str(errors[0]) == str(errors[1]).replace("x", "d")


def test_batch_is_checked_whole_before_any_of_it_is_done(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.table("s", "mine")
    catalog.table("theirs")
    catalog.grant("ann", "create", namespace=("s",))
    catalog.grant("ann", "all", table=("s", "mine"))
    ann = catalog.as_("ann")
    own_entries = [{"declare_table": {"id": ["s", "new"]}}, {"deregister_table": {"id": ["s", "mine"]}}]
    error = error_of(ann.batch_commit_tables, {"operations": [*own_entries, {"deregister_table": {"id": ["theirs"]}}]})
    assert type(error) is TableNotFoundError
    assert ann.list_tables({"id": ["s"]}).tables == ["mine"]
    ann.batch_commit_tables({"operations": [*own_entries, {"deregister_table": {"id": ["s", "new"]}}]})
    assert ann.list_tables({"id": ["s"]}).tables == []


def test_drop_with_skip_of_a_namespace_that_may_not_be_seen_does_nothing_and_says_so_to_nobody(
    catalog: Catalog,
) -> None:
    catalog.namespace("s")
    ann = catalog.as_("ann")
    hidden, missing = (ann.drop_namespace({"id": [name], "mode": "Skip"}) for name in ("s", "x"))
    assert hidden.to_dict() == missing.to_dict()
    catalog.owner.namespace_exists({"id": ["s"]})


def test_undrop_is_for_who_could_drop(catalog: Catalog) -> None:
    catalog.namespace("s")
    for name in ("a", "b"):
        catalog.table("s", name)
    catalog.grant("ann", "drop,read", table=("s", "a"))
    catalog.grant("ann", "read", table=("s", "b"))
    ann = catalog.as_("ann")
    for name in ("a", "b"):
        catalog.owner.drop_table({"id": ["s", name]})
    assert [entry["id"] for entry in ann.call("ListDroppedTables", {})["tables"]] == [["s", "a"]]
    hidden, missing = (error_of(ann.call, "UndropTable", {"id": ["s", name]}) for name in ("b", "x"))
    assert str(hidden) == str(missing).replace("x", "b")
    assert type(error_of(ann.call, "UndropTable", {"id": ["s", "a"]})) is NamespaceNotFoundError  # nothing left to see
    catalog.grant("ann", "create", namespace=("s",))
    ann.call("UndropTable", {"id": ["s", "a"]})
    assert ann.count_table_rows({"id": ["s", "a"]}).count == 3


def test_whom_a_classification_binds_cannot_undrop_into_a_place_without_it(catalog: Catalog) -> None:
    for name in ("s", "t"):
        catalog.namespace(name)
        catalog.grant("ann", "all", namespace=(name,))
    catalog.table("s", "a")
    admin, ann = catalog.owner, catalog.as_("ann")
    admin.call("SetClassification", {"object_kind": "namespace", "id": ["s"], "key": "pii"})
    admin.call("SetClassificationPolicy", {"name": "personal", "key": "pii", "mask": "null"})
    catalog.refresh_rights()
    ann.drop_table({"id": ["s", "a"]})
    moved = {"new_namespace_id": ["t"], "new_table_name": "a"}
    assert "classify otherwise" in str(error_of(ann.call, "UndropTable", {"id": ["s", "a"], **moved}))
    ann.call("UndropTable", {"id": ["s", "a"]})
    ann.drop_namespace({"id": ["s"], "behavior": "Cascade"})
    assert "classify otherwise" in str(
        error_of(ann.call, "UndropNamespace", {"id": ["s"], "new_namespace_id": ["t", "s"]})
    )


def test_transaction_is_seen_by_who_asked_and_by_who_sees_the_table(catalog: Catalog) -> None:
    catalog.table("t")
    catalog.grant("ann", "alter", table=("t",))
    catalog.grant("bob", "read", table=("t",))
    ann, bob, eve = (catalog.as_(name) for name in ("ann", "bob", "eve"))
    transaction_id = ann.create_table_index({"id": ["t"], "column": "id", "index_type": "BTREE"}).transaction_id
    cancel = {"id": [transaction_id], "actions": [{"setStatusAction": {"status": "Canceled"}}]}
    assert bob.describe_transaction({"id": [transaction_id]}).status == "Queued"
    assert type(error_of(bob.alter_transaction, cancel)) is PermissionDeniedError
    hidden, missing = (error_of(eve.describe_transaction, {"id": [name]}) for name in (transaction_id, "nothing"))
    assert type(hidden) is type(missing) is TransactionNotFoundError
    assert str(hidden) == str(missing).replace("nothing", transaction_id)
    assert ann.alter_transaction(cancel).status == "Canceled"


def test_roles_and_groups_give_what_was_granted_to_them(catalog: Catalog) -> None:
    catalog.table("t")
    catalog.store.add_role("analysts")
    catalog.store.add_member("analysts", "principal:ann")
    catalog.store.add_member("analysts", "group:night")
    catalog.grant("role:analysts", "read", table=("t",))
    catalog.grant("group:day", "use", table=("t",))
    for name, groups, counts in (("ann", (), True), ("bob", ("night",), True), ("bob", ("day",), False)):
        twin = catalog.as_(name, *groups)
        twin.table_exists({"id": ["t"]})
        if counts:
            assert twin.count_table_rows({"id": ["t"]}).count == 3
        else:
            assert type(error_of(twin.count_table_rows, {"id": ["t"]})) is PermissionDeniedError
    catalog.store.drop_role("analysts")
    catalog.refresh_rights()
    assert type(error_of(catalog.as_("ann").table_exists, {"id": ["t"]})) is TableNotFoundError


def test_revoke_ends_what_was_granted(catalog: Catalog) -> None:
    number = catalog.table("t")
    catalog.grant("ann", "read", table=("t",))
    ann = catalog.as_("ann")
    assert ann.count_table_rows({"id": ["t"]}).count == 3
    catalog.store.revoke("principal:ann", "table", number, 0)
    catalog.refresh_rights()
    assert type(error_of(ann.count_table_rows, {"id": ["t"]})) is TableNotFoundError


def test_creator_has_all_privileges_but_to_run_code_and_to_administer(catalog: Catalog) -> None:
    """Jobs run as the worker does and read what it can: to create a table is not to be let near that."""
    catalog.grant("ann", "create", namespace=())
    ann = catalog.as_("ann")
    ann.create_namespace({"id": ["mine"]})
    ann.create_table({"id": ["t"]}, ROWS_AS_STREAM)
    for target in ({"object_kind": "namespace", "id": ["mine"]}, {"object_kind": "table", "id": ["t"]}):
        request = {**target, "privileges": ["all"]}
        assert ann.call("CheckPrivileges", request)["missing"] == [
            "run_udfs",
            "administer",
            "create_function",
            "manage_secrets",
            "classify",
            "legal_hold",
            "approve",
        ]
    job = {"name": "export", "table": ["t"], "arguments": {}}
    assert "run_udfs" in str(error_of(ann.call, "SubmitJob", job))
