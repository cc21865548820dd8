"""Grants and roles: changing and checking them, by callers with and without the privilege."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)

from tests.access.conftest import Catalog
from tiltyard.model.principals import ALL, privilege_names

EVERYTHING = privilege_names(ALL)
READER = {"grantee": "bob", "privileges": ["read"]}


@pytest.fixture
def table(catalog: Catalog) -> dict[str, Any]:
    """The table s$t, as requests name an object."""
    catalog.namespace("s")
    catalog.table("s", "t")
    return {"object_kind": "table", "id": ["s", "t"]}


def grants(response: Any) -> list[tuple[Any, ...]]:
    return [
        (entry["grantee_kind"], entry["grantee"], entry["object_kind"], tuple(entry["id"]), tuple(entry["privileges"]))
        for entry in response["grants"]
    ]


def test_grant_by_the_owner_lets_another_read_at_once(catalog: Catalog, table: dict[str, Any]) -> None:
    catalog.grant("ann", "all", table=("s", "t"))
    assert catalog.as_("ann").call("GrantPrivileges", {**table, **READER})["privileges"] == ["read"]
    bob = catalog.as_("bob")
    catalog.refresh_rights()
    assert bob.count_table_rows({"id": ["s", "t"]}).count == 3
    assert catalog.as_("ann").call("RevokePrivileges", {**table, **READER})["privileges"] == []
    catalog.refresh_rights()
    with pytest.raises(NamespaceNotFoundError):
        bob.count_table_rows({"id": ["s", "t"]})


def test_grant_of_what_one_has_not_oneself_is_refused(catalog: Catalog, table: dict[str, Any]) -> None:
    catalog.grant("ann", "manage_grants,read", table=("s", "t"))
    ann = catalog.as_("ann")
    ann.call("GrantPrivileges", {**table, **READER})
    for privilege in ("write", "administer", "all"):
        with pytest.raises(PermissionDeniedError):
            ann.call("GrantPrivileges", {**table, "grantee": "ann", "privileges": [privilege]})


def test_grant_without_manage_grants_is_refused(catalog: Catalog, table: dict[str, Any]) -> None:
    catalog.grant("ann", "read,write", table=("s", "t"))
    for call in ("GrantPrivileges", "RevokePrivileges"):
        with pytest.raises(PermissionDeniedError, match="manage_grants"):
            catalog.as_("ann").call(call, {**table, **READER})
    with pytest.raises(NamespaceNotFoundError):
        catalog.as_("eve").call("GrantPrivileges", {**table, **READER})
    with pytest.raises(PermissionDeniedError):
        catalog.as_("ann").call("GrantPrivileges", {"object_kind": "server", **READER})


@pytest.mark.parametrize(
    "wrong",
    [
        {"privileges": ["sing"]},
        {"privileges": []},
        {"grantee": ""},
        {"grantee_kind": "horse"},
        {"grantee_kind": "role", "grantee": "nobodies"},
        {"object_kind": "horse"},
        {"object_kind": "server"},
        {"object_kind": "table", "id": []},
        {"grantee": "a\x00b"},
    ],
    ids=str,
)
def test_grant_of_nonsense_is_invalid_input(catalog: Catalog, table: dict[str, Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        catalog.owner.call("GrantPrivileges", {**table, **READER, **wrong})


def test_list_grants_on_an_object_and_of_a_grantee(catalog: Catalog, table: dict[str, Any]) -> None:
    admin = catalog.owner
    admin.call("CreateRole", {"role": "ops"})
    admin.call("GrantPrivileges", {**table, **READER})
    admin.call("GrantPrivileges", {**table, "grantee": "ops", "grantee_kind": "role", "privileges": ["all"]})
    admin.call("GrantPrivileges", {"object_kind": "namespace", "id": ["s"], **READER})
    admin.call("GrantPrivileges", {"object_kind": "server", **READER})
    assert grants(admin.call("ListGrants", table)) == [
        ("principal", "bob", "table", ("s", "t"), ("read",)),
        ("role", "ops", "table", ("s", "t"), tuple(EVERYTHING)),
    ]
    bobs_grants = [
        ("principal", "bob", "namespace", ("s",), ("read",)),
        ("principal", "bob", "server", (), ("read",)),
        ("principal", "bob", "table", ("s", "t"), ("read",)),
    ]
    assert grants(admin.call("ListGrants", {"grantee": "bob"})) == bobs_grants
    assert grants(catalog.as_("bob").call("ListGrants", {"grantee": "bob"})) == bobs_grants
    for request in (table, {"grantee": "ops", "grantee_kind": "role"}, {"grantee": "ann"}):
        with pytest.raises(PermissionDeniedError):
            catalog.as_("bob").call("ListGrants", request)


def test_list_grants_pages(catalog: Catalog, table: dict[str, Any]) -> None:
    names = [f"p{number}" for number in range(5)]
    for name in names:
        catalog.owner.call("GrantPrivileges", {**table, "grantee": name, "privileges": ["read"]})
    grantees, token = [], None
    for _ in itertools.count():
        page = catalog.owner.call("ListGrants", {**table, "limit": 2, "page_token": token})
        grantees += [entry["grantee"] for entry in page["grants"]]
        if not (token := page.get("page_token")):
            break
    assert grantees == names


def test_check_privileges_tells_what_is_inherited(catalog: Catalog, table: dict[str, Any]) -> None:
    catalog.grant("bob", "read", namespace=("s",))
    catalog.owner.call("CreateRole", {"role": "ops"})
    catalog.owner.call("AddRoleMember", {"role": "ops", "member": "night", "member_kind": "group"})
    catalog.owner.call("GrantPrivileges", {**table, "grantee": "ops", "grantee_kind": "role", "privileges": ["write"]})
    catalog.refresh_rights()
    request = {**table, "privileges": ["read", "write"]}
    response = catalog.as_("bob").call("CheckPrivileges", request)
    assert (response["allowed"], response["privileges"], response["missing"]) == (False, ["use", "read"], ["write"])
    assert catalog.as_("bob", "night").call("CheckPrivileges", request)["allowed"]
    assert not catalog.owner.call("CheckPrivileges", {**request, "grantee": "bob"})["allowed"]
    assert catalog.owner.call("CheckPrivileges", {**request, "grantee": "bob", "groups": ["night"]})["allowed"]
    role = catalog.owner.call("CheckPrivileges", {**table, "grantee": "ops", "grantee_kind": "role"})
    assert role["privileges"] == ["use", "write"]
    with pytest.raises(PermissionDeniedError):
        catalog.as_("bob").call("CheckPrivileges", {**request, "grantee": "ann"})
    with pytest.raises(TableNotFoundError):
        catalog.as_("bob").call("CheckPrivileges", {**request, "id": ["s", "x"]})
    with pytest.raises(NamespaceNotFoundError):
        catalog.as_("eve").call("CheckPrivileges", request)


def test_roles_are_the_administrators_business(catalog: Catalog, table: dict[str, Any]) -> None:
    admin = catalog.owner
    admin.call("CreateRole", {"role": "ops"})
    admin.call("AddRoleMember", {"role": "ops", "member": "ann"})
    admin.call("AddRoleMember", {"role": "ops", "member": "night", "member_kind": "group"})
    members = [{"name": "night", "kind": "group"}, {"name": "ann", "kind": "principal"}]
    assert admin.call("ListRoles", {})["roles"] == [{"name": "ops", "members": members}]
    for call, request in (
        ("CreateRole", {"role": "ops"}),
        ("DropRole", {"role": "none"}),
        ("AddRoleMember", {"role": "ops", "member": "ann"}),
        ("AddRoleMember", {"role": "none", "member": "ann"}),
        ("AddRoleMember", {"role": "ops", "member": "ops", "member_kind": "role"}),
        ("RemoveRoleMember", {"role": "ops", "member": "bob"}),
    ):
        with pytest.raises(InvalidInputError):
            admin.call(call, request)
    for call, request in (
        ("CreateRole", {"role": "ops"}),
        ("DropRole", {"role": "ops"}),
        ("ListRoles", {}),
        ("AddRoleMember", {"role": "ops", "member": "eve"}),
        ("RemoveRoleMember", {"role": "ops", "member": "eve"}),
    ):
        with pytest.raises(PermissionDeniedError):
            catalog.as_("ann").call(call, request)
    admin.call("RemoveRoleMember", {"role": "ops", "member": "ann"})
    admin.call("DropRole", {"role": "ops"})
    assert admin.call("ListRoles", {})["roles"] == []


def test_who_am_i_tells_groups_roles_and_what_holds_everywhere(catalog: Catalog) -> None:
    assert catalog.owner.call("WhoAmI", {})["administrator"]
    catalog.store.add_role("ops")
    catalog.store.add_member("ops", "group:night")
    catalog.grant("role:ops", "read")
    identity = catalog.as_("ann", "night").call("WhoAmI", {})
    assert identity["principal"] == "ann" and identity["groups"] == ["night"] and identity["roles"] == ["ops"]
    assert identity["privileges"] == ["use", "read"] and not identity["administrator"]


def test_administer_on_the_server_is_everything(catalog: Catalog, table: dict[str, Any]) -> None:
    catalog.grant("ann", "administer")
    ann = catalog.as_("ann")
    ann.call("CreateRole", {"role": "ops"})
    ann.call("GrantPrivileges", {**table, **READER, "privileges": ["all"]})
    ann.call("CollectGarbage", {"dry_run": True})
    assert ann.call("WhoAmI", {})["privileges"] == EVERYTHING
    assert ann.list_all_tables({}).tables == ["s$t"]
