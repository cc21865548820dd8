"""lancedb's authorization calls (`/admin/authz/…`), as its catalog client sends them, on grants and roles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.conformance.test_remote_wire import STREAM, to_stream
from tests.services.secured import Secured, secured_server

numbers = itertools.count(1)
TABLE = "table:main:public$t"
PLACES = ["system", "database:main", "namespace:main:deep$er", TABLE, "view:main:public$t", "table:main:deep$er$t"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("root")) as running:
        with running.http("administrator") as http:
            for name in ("main", "main$deep", "main$deep$er"):
                assert http.post(f"/v1/namespace/{name}/create", json={}).status_code == 200
            for name in ("main$t", "main$deep$er$t"):
                created = http.post(
                    f"/v1/table/{name}/create", content=to_stream(pa.table({"id": [1]})), headers=STREAM
                )
                assert created.status_code == 200, created.text
            assert http.post("/tiltyard/v1/role/create", json={"role": "analysts"}).status_code == 200
        yield running


@pytest.fixture
def admin(secured: Secured) -> Iterator[httpx.Client]:
    with secured.http("administrator") as http:
        yield http


def call(http: httpx.Client, name: str, **fields: Any) -> httpx.Response:
    return http.post(f"/admin/authz/{name}", json=fields)


def acls(http: httpx.Client, **fields: Any) -> list[tuple[str, str, str]]:
    answer = call(http, "acl/list", **fields)
    assert answer.status_code == 200, answer.text
    return [(entry["subject_id"], entry["object"], entry["privilege"]) for entry in answer.json()["entries"]]


def new_subject() -> str:
    return f"p:carl{next(numbers)}"


@pytest.mark.parametrize(
    ("object_", "privilege"),
    [
        ("system", "OPERATE"),
        ("system", "PRIVILEGE104"),
        ("database:main", "USAGE"),
        ("database:main", "PRIVILEGE106"),
        ("namespace:main:deep$er", "USAGE"),
        ("namespace:main:deep$er", "CREATE_FUNCTION"),
        ("table:main:deep$er$t", "SELECT"),
        (TABLE, "SELECT"),
        (TABLE, "PRIVILEGE103"),
    ],
)
def test_acl_is_added_once_listed_and_deleted_once(admin: httpx.Client, object_: str, privilege: str) -> None:
    acl = {"subject": new_subject(), "object": object_, "privilege": privilege}
    assert call(admin, "acl/add", **acl).status_code == 200
    assert call(admin, "acl/add", **acl).status_code == 409
    shown = "CREATE_DATABASE" if (object_, privilege) == ("system", "PRIVILEGE104") else privilege
    for listed in ({"subject": acl["subject"]}, {"object": object_, "subject": acl["subject"]}):
        assert acls(admin, **listed) == [(acl["subject"], object_, shown)]
    assert (acl["subject"], object_, shown) in acls(admin, object=object_)
    assert call(admin, "acl/delete", **acl).status_code == 200
    assert call(admin, "acl/delete", **acl).status_code == 404
    assert acls(admin, subject=acl["subject"]) == []


@pytest.mark.parametrize(
    ("object_", "privilege", "said"),
    [
        ("system", "CREATE_DATABASE", "add PRIVILEGE104"),
        ("system", "USAGE", "no counterpart on this kind"),
        ("system", "OWNERSHIP", "no counterpart on this kind"),
        ("database:main", "CREATE_NAMESPACE", "part of `create`"),
        ("namespace:main:deep", "CREATE_TABLE", "part of `create`"),
        ("namespace:main:deep", "CREATE_SECRET", "part of `manage_secrets`"),
        (TABLE, "INSERT", "part of `write`"),
        (TABLE, "DELETE", "part of `write`"),
        (TABLE, "OPERATE", "no counterpart on this kind"),
        (TABLE, "select", "no counterpart on this kind"),
        (TABLE, "PRIVILEGE999", "no counterpart on this kind"),
        ("secret:main:public$s", "USAGE", "no grants of its own"),
        ("function:main:public$f", "USAGE", "no grants of its own"),
        ("table:main", "SELECT", "is no object"),
        ("table:main:public", "SELECT", "names no table"),
        ("nothing:x", "SELECT", "is no object"),
        ("database:", "USAGE", "is no object"),
        ("tiltyard:server:x", "USAGE", "is no object"),
    ],
)
def test_acl_without_a_counterpart_is_refused_and_says_what_to_do(
    admin: httpx.Client, object_: str, privilege: str, said: str
) -> None:
    subject = new_subject()
    refused = call(admin, "acl/add", subject=subject, object=object_, privilege=privilege)
    assert (refused.status_code, said in refused.text) == (400, True), refused.text
    assert acls(admin, subject=subject) == []


def test_parts_of_a_privilege_are_listed_for_who_has_it_and_deleted_with_it(admin: httpx.Client) -> None:
    acl = {"subject": new_subject(), "object": TABLE}
    assert call(admin, "acl/add", privilege="PRIVILEGE102", **acl).status_code == 200
    listed = [privilege for _, _, privilege in acls(admin, subject=acl["subject"])]
    assert listed == ["INSERT", "UPDATE", "DELETE"]
    assert call(admin, "acl/delete", privilege="INSERT", **acl).status_code == 200
    assert acls(admin, subject=acl["subject"]) == []


def test_ownership_moves_and_is_not_deleted(admin: httpx.Client) -> None:
    first, second = new_subject(), new_subject()
    acl = {"object": "namespace:main:deep$er", "privilege": "OWNERSHIP"}
    assert call(admin, "acl/add", subject=first, **acl).status_code == 200
    assert acls(admin, subject=first) == [(first, acl["object"], "OWNERSHIP")]
    assert call(admin, "acl/add", subject=second, **acl).status_code == 200
    assert (acls(admin, subject=first), len(acls(admin, subject=second))) == ([], 1)
    refused = call(admin, "acl/delete", subject=second, **acl)
    assert (refused.status_code, "not revoked" in refused.text) == (400, True)


def test_ownership_whose_move_was_cut_off_is_moved_by_the_same_call(admin: httpx.Client) -> None:
    first, second = new_subject(), new_subject()
    acl = {"object": "namespace:main:deep$er", "privilege": "OWNERSHIP"}
    assert call(admin, "acl/add", subject=first, **acl).status_code == 200
    owner = admin.post("/tiltyard/v1/grant/list", json={"grantee": first.removeprefix("p:")}).json()["grants"][0]
    both = {"object_kind": "namespace", "id": ["main", "deep", "er"], "privileges": owner["privileges"]}
    granted = admin.post("/tiltyard/v1/grant/add", json={**both, "grantee": second.removeprefix("p:")})
    assert granted.status_code == 200, granted.text
    assert call(admin, "acl/add", subject=second, **acl).status_code == 200
    assert (acls(admin, subject=first), len(acls(admin, subject=second))) == ([], 1)
    assert call(admin, "acl/add", subject=second, **acl).status_code == 409


@pytest.mark.parametrize("object_", PLACES)
def test_caller_changes_and_lists_acls_only_where_it_may_manage_grants(secured: Secured, object_: str) -> None:
    with secured.http("ann") as ann:
        privilege = {"system": "OPERATE", "database:main": "USAGE"}.get(object_, "SELECT")
        privilege = "USAGE" if object_.startswith("namespace") else privilege
        acl = {"subject": "p:ann", "object": object_, "privilege": privilege}
        for name in ("acl/add", "acl/delete"):
            assert call(ann, name, **acl).status_code in (403, 404)
        assert call(ann, "acl/list", object=object_).status_code in (403, 404)
        assert call(ann, "acl/list").status_code == 403
        assert call(ann, "acl/list", subject="p:bob").status_code == 403
        assert acls(ann, subject="p:ann") == []


def test_caller_grants_only_what_it_has_itself(secured: Secured, admin: httpx.Client) -> None:
    for privilege in ("PRIVILEGE106", "SELECT"):
        assert call(admin, "acl/add", subject="p:bob", object=TABLE, privilege=privilege).status_code == 200
    with secured.http("bob") as bob:
        subject = new_subject()
        assert call(bob, "acl/add", subject=subject, object=TABLE, privilege="SELECT").status_code == 200
        for privilege in ("PRIVILEGE102", "PRIVILEGE108", "OWNERSHIP"):
            refused = call(bob, "acl/add", subject=subject, object=TABLE, privilege=privilege)
            assert refused.status_code == 403, refused.text
        assert call(bob, "acl/add", subject=subject, object="database:main", privilege="USAGE").status_code == 403
    for privilege in ("PRIVILEGE106", "SELECT"):
        assert call(admin, "acl/delete", subject="p:bob", object=TABLE, privilege=privilege).status_code == 200
    with secured.http("bob") as bob:
        assert call(bob, "acl/list", object=TABLE).status_code == 404


def test_role_bindings_are_idempotent_and_listed(admin: httpx.Client) -> None:
    member = new_subject()
    binding = {"subject": member, "role": "analysts"}
    for _ in range(2):
        assert call(admin, "role_binding/add", **binding).status_code == 200
    assert call(admin, "role_binding/add", subject="G:night", role="analysts").status_code == 200
    expected = {"subject_id": member, "role": "analysts"}
    for listed in ({}, {"role": "analysts"}, {"subject": member}, binding):
        assert expected in call(admin, "role_binding/list", **listed).json()["bindings"]
    described = call(admin, "principal", principal=member).json()
    name = member.removeprefix("p:")
    assert described == {"principal_id": name, "principal_name": name, "groups": [], "roles": ["analysts"]}
    assert call(admin, "group", group="g:night").json()["roles"] == ["analysts"]
    for _ in range(2):
        assert call(admin, "role_binding/delete", **binding).status_code == 200
    assert call(admin, "role_binding/list", subject=member).json() == {"bindings": []}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("role_binding/add", {"subject": "p:ann", "role": "analysts"}),
        ("role_binding/delete", {"subject": "p:ann", "role": "analysts"}),
        ("role_binding/list", {}),
        ("principal", {"principal": "p:ann"}),
        ("group", {"group": "g:night"}),
    ],
)
def test_roles_are_the_administrators_alone(secured: Secured, name: str, fields: dict[str, Any]) -> None:
    with secured.http("ann") as ann, secured.http() as stranger:
        assert call(ann, name, **fields).status_code == 403
        assert call(stranger, name, **fields).status_code == 401


@pytest.mark.parametrize(
    ("name", "field", "more"),
    [
        ("acl/add", "subject", {"object": TABLE, "privilege": "SELECT"}),
        ("acl/delete", "subject", {"object": TABLE, "privilege": "SELECT"}),
        ("acl/list", "subject", {}),
        ("role_binding/add", "subject", {"role": "analysts"}),
        ("principal", "principal", {}),
        ("group", "group", {}),
    ],
)
@pytest.mark.parametrize("subject", ["", "x:y", "r", "p:", ":", "p", "R:analysts", "a:KEY", "p:" + "x" * 5_000])
def test_subject_that_is_none_is_refused_without_being_repeated(
    secured: Secured, admin: httpx.Client, name: str, field: str, more: dict[str, Any], subject: str
) -> None:
    text = subject.replace("KEY", secured.keys["bob"])  # the server's log is searched for keys once it stops
    refused = call(admin, name, **{field: text}, **more)
    assert refused.status_code == 400, refused.text
    assert secured.keys["bob"] not in refused.text


def test_changes_of_acls_are_in_the_audit_without_a_key(secured: Secured, admin: httpx.Client) -> None:
    acl = {"subject": new_subject(), "object": TABLE, "privilege": "SELECT"}
    assert call(admin, "acl/add", **acl).status_code == 200
    call(admin, "acl/add", **acl | {"subject": f"a:{secured.keys['ann']}"})
    found = admin.post("/tiltyard/v1/audit", json={"operation": "AddAcl"})
    assert found.status_code == 200, found.text
    assert "AddAcl" in found.text
    assert secured.keys["ann"] not in found.text


def test_all_acls_are_listed_in_pages_of_pairs(admin: httpx.Client) -> None:
    subjects = [new_subject() for _ in range(3)]
    for subject in subjects:
        assert call(admin, "acl/add", subject=subject, object="database:main", privilege="USAGE").status_code == 200
    found, token = [], None
    for _ in range(100):
        page = call(admin, "acl/list", max_results=2, **({} if token is None else {"continuation_token": token})).json()
        found += [entry["subject_id"] for entry in page["entries"]]
        if (token := page.get("continuation_token")) is None:
            break
    assert set(subjects) <= set(found)
    assert call(admin, "acl/list", continuation_token="none").status_code == 400
