"""Namespaces and tables as entries, through the generated client, the Rust client, and plain HTTP."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lance
import lance.namespace as rust
import lance_namespace
import lance_namespace_urllib3_client as u
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from lance_namespace_urllib3_client.api import NamespaceApi, TableApi

from tests.conformance.conftest import Raw

Fresh = Callable[[str], str]


def code(response: Any) -> tuple[int, int]:
    """Status and error code; also that the error has its one shape."""
    body = response.json()
    assert set(body) <= {"error", "code", "instance", "detail"} and body["error"] and body["instance"]
    assert response.headers["x-request-id"] == body["instance"]
    return response.status_code, body["code"]


def test_create_namespace_by_generated_client_describes_its_properties(generated: u.ApiClient, fresh: Fresh) -> None:
    api, name = NamespaceApi(generated), fresh("n")
    created = api.create_namespace(name, u.CreateNamespaceRequest(id=[name], properties={"owner": "ada"}))
    assert created.properties == {"owner": "ada"}
    assert api.describe_namespace(name, u.DescribeNamespaceRequest()).properties == {"owner": "ada"}
    api.namespace_exists(name, u.NamespaceExistsRequest())
    assert name in api.list_namespaces("$").namespaces


def test_create_namespace_by_rust_client_lists_and_drops(rest: rust.RestNamespace, fresh: Fresh) -> None:
    name = fresh("n")
    rest.create_namespace(rust.CreateNamespaceRequest(id=[name], properties={"a": "b"}))
    rest.create_namespace(rust.CreateNamespaceRequest(id=[name, "inner"]))
    assert rest.list_namespaces(rust.ListNamespacesRequest(id=[name])).namespaces == ["inner"]
    with pytest.raises(NamespaceAlreadyExistsError):
        rest.create_namespace(rust.CreateNamespaceRequest(id=[name]))
    with pytest.raises(NamespaceNotEmptyError):
        rest.drop_namespace(rust.DropNamespaceRequest(id=[name]))
    rest.drop_namespace(rust.DropNamespaceRequest(id=[name], behavior="Cascade"))
    with pytest.raises(NamespaceNotFoundError):
        rest.describe_namespace(rust.DescribeNamespaceRequest(id=[name]))
    rest.drop_namespace(rust.DropNamespaceRequest(id=[name], mode="Skip"))


@pytest.mark.parametrize("mode", ["ExistOk", "exist_ok", "EXIST_OK"])
def test_create_namespace_exist_ok_keeps_the_existing(raw: Raw, fresh: Fresh, mode: str) -> None:
    name = fresh("n")
    raw.post(f"/v1/namespace/{name}/create", {"properties": {"a": "1"}})
    repeated = raw.post(f"/v1/namespace/{name}/create", {"mode": mode, "properties": {"a": "2"}})
    assert repeated.status_code == 200 and repeated.json()["properties"] == {"a": "1"}


def test_create_namespace_overwrite_drops_what_was_in_it(raw: Raw, namespace: str) -> None:
    raw.post(f"/v1/table/{namespace}$t/declare")
    assert raw.post(f"/v1/namespace/{namespace}/create", {"mode": "Overwrite"}).status_code == 200
    assert raw.get(f"/v1/namespace/{namespace}/table/list").json() == {"tables": []}


def test_create_namespace_errors_have_their_codes(raw: Raw, fresh: Fresh, namespace: str) -> None:
    assert code(raw.post(f"/v1/namespace/{namespace}/create")) == (409, 2)
    assert code(raw.post(f"/v1/namespace/{fresh('none')}$x/create")) == (404, 1)
    assert code(raw.post(f"/v1/namespace/{fresh('n')}/create", {"mode": "Maybe"})) == (400, 13)
    assert code(raw.post(f"/v1/namespace/{fresh('n')}/create", {"id": ["other"]})) == (400, 13)
    assert code(raw.post(f"/v1/namespace/{fresh('n')}/create", {"properties": {"a": 1}})) == (400, 13)
    assert code(raw.post("/v1/namespace/$/create")) == (409, 2)
    assert code(raw.post("/v1/namespace/$/drop")) == (400, 13)


def test_declare_table_in_a_missing_namespace_leaves_nothing(raw: Raw, fresh: Fresh) -> None:
    name = fresh("none")
    assert code(raw.post(f"/v1/table/{name}$t/declare")) == (404, 1)
    assert code(raw.post(f"/v1/table/{name}$t/describe")) == (404, 1)


@pytest.mark.parametrize("action", ["declare", "create-empty"])
def test_declare_table_reserves_name_and_location(raw: Raw, namespace: str, action: str) -> None:
    declared = raw.post(f"/v1/table/{namespace}$t/{action}", {"properties": {"k": "v"}}).json()
    assert declared["location"] and declared["properties"] == {"k": "v"}
    described = raw.post(f"/v1/table/{namespace}$t/describe?check_declared=true").json()
    assert (described["location"], described["is_only_declared"]) == (declared["location"], True)
    assert (described["table"], described["namespace"]) == ("t", [namespace])
    assert code(raw.post(f"/v1/table/{namespace}$t/{action}")) == (409, 5)
    assert raw.get(f"/v1/namespace/{namespace}/table/list?include_declared=false").json() == {"tables": []}


def test_table_lifecycle_by_rust_client(rest: rust.RestNamespace, namespace: str) -> None:
    location = rest.declare_table(rust.DeclareTableRequest(id=[namespace, "a"])).location
    with pytest.raises(TableAlreadyExistsError):
        rest.declare_table(rust.DeclareTableRequest(id=[namespace, "a"]))
    assert rest.describe_table(rust.DescribeTableRequest(id=[namespace, "a"])).location == location
    assert rest.list_tables(rust.ListTablesRequest(id=[namespace])).tables == ["a"]
    rest.table_exists(rust.TableExistsRequest(id=[namespace, "a"]))
    rest.deregister_table(rust.DeregisterTableRequest(id=[namespace, "a"]))
    with pytest.raises(TableNotFoundError):
        rest.table_exists(rust.TableExistsRequest(id=[namespace, "a"]))


def test_rename_table_moves_across_namespaces_and_keeps_the_location(
    generated: u.ApiClient, raw: Raw, namespace: str, fresh: Fresh
) -> None:
    api, other = TableApi(generated), fresh("other")
    raw.post(f"/v1/namespace/{other}/create")
    location = api.declare_table(f"{namespace}$a", u.DeclareTableRequest()).location
    api.rename_table(f"{namespace}$a", u.RenameTableRequest(new_table_name="b", new_namespace_id=[other]))
    assert api.describe_table(f"{other}$b", u.DescribeTableRequest()).location == location
    assert code(raw.post(f"/v1/table/{namespace}$a/describe")) == (404, 4)
    api.declare_table(f"{namespace}$a", u.DeclareTableRequest())
    request = {"new_table_name": "b", "new_namespace_id": [other]}
    assert code(raw.post(f"/v1/table/{namespace}$a/rename", request)) == (409, 5)
    missing = {"new_table_name": "b", "new_namespace_id": [fresh("none")]}
    assert code(raw.post(f"/v1/table/{namespace}$a/rename", missing)) == (404, 1)


def test_list_tables_pages_hold_while_others_insert(raw: Raw, namespace: str) -> None:
    for number in range(0, 20, 2):
        raw.post(f"/v1/table/{namespace}$t{number:02}/declare")
    names: list[str] = []
    token = ""
    while True:
        page = raw.get(f"/v1/namespace/{namespace}/table/list", params={"limit": 3, "page_token": token}).json()
        names += page["tables"]
        raw.post(f"/v1/table/{namespace}$a{len(names)}/declare")
        token = page.get("page_token", "")
        if not token:
            break
    assert names == [f"t{number:02}" for number in range(0, 20, 2)]


@pytest.mark.parametrize("kind", ["tables", "namespaces"])
def test_last_name_of_a_page_is_a_page_token_as_in_the_namespaces_of_lance(
    raw: Raw, namespace: str, tmp_path: Path, kind: str
) -> None:
    names = ["a", "b", "c%", "d_d", "é"]
    directory = rust.DirectoryNamespace(root=str(tmp_path))
    for name in names:
        assert raw.post(
            f"/v1/{kind[:-1]}/{namespace}${quote(name)}/{'declare' if kind == 'tables' else 'create'}"
        ).is_success
        if name.isalpha() and name.isascii():
            lance.write_dataset(pa.table({"n": [1]}), tmp_path / f"{name}.lance")
    path = f"/v1/namespace/{namespace}/{'table/list' if kind == 'tables' else 'list'}"
    for last in (*names, "aa", "zz", "0", "nothing like it"):
        page = raw.get(path, params={"page_token": last, "limit": 2}).json()
        assert page[kind] == [name for name in names if name.encode() > last.encode()][:2]
    first = raw.get(path, params={"limit": 2}).json()
    assert raw.get(path, params={"page_token": first["page_token"]}).json()[kind] == names[2:]
    if kind == "tables":
        expected = directory.list_tables(lance_namespace.ListTablesRequest(id=[], page_token="a", limit=1))
        assert expected.tables == raw.get(path, params={"page_token": "a", "limit": 1}).json()["tables"] == ["b"]


def test_page_token_forged_or_foreign_is_refused(raw: Raw, namespace: str, fresh: Fresh) -> None:
    for name in ("a", "b"):
        raw.post(f"/v1/table/{namespace}${name}/declare")
    token = raw.get(f"/v1/namespace/{namespace}/table/list?limit=1").json()["page_token"]
    of_all = raw.get("/v1/table?limit=1").json()["page_token"]
    for forged in ("x", of_all[:-2], "a" * 40, token):
        assert code(raw.get("/v1/table", params={"page_token": forged})) == (400, 13)
    for path in ("/v1/namespace/$/table/list", f"/v1/namespace/{namespace}/list"):
        assert code(raw.get(path, params={"page_token": token})) == (400, 13)
    assert code(raw.get(f"/v1/namespace/{namespace}/table/list?limit=0")) == (400, 13)
    assert code(raw.get(f"/v1/namespace/{namespace}/table/list?limit=many")) == (400, 13)


def test_list_all_tables_has_full_ids_in_the_given_delimiter(raw: Raw, namespace: str) -> None:
    raw.post(f"/v1/table/{namespace}$t/declare")
    assert f"{namespace}$t" in raw.get("/v1/table").json()["tables"]
    assert f"{namespace}::t" in raw.get("/v1/table?delimiter=::").json()["tables"]


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "a/b",
        "../evil",
        "ünï",
        "表",
        "😀",
        "a%2Fb",
        "a+b",
        "CON",
        "a'b\"c;--",
        "x" * 256,
        ".hidden",
        "A",
        "a",
    ],
)
def test_declare_table_takes_any_name_and_never_as_a_path(
    raw: Raw, rest: rust.RestNamespace, generated: u.ApiClient, namespace: str, name: str
) -> None:
    location = rest.declare_table(rust.DeclareTableRequest(id=[namespace, name])).location
    assert ".." not in location and location.rpartition("/")[2].isascii()
    assert rest.list_tables(rust.ListTablesRequest(id=[namespace])).tables == [name]
    assert TableApi(generated).describe_table(f"{namespace}${name}", u.DescribeTableRequest()).location == location
    description = raw.post(f"/v1/table/{quote(namespace + '$' + name, safe='')}/describe")
    assert description.json()["table"] == name


@pytest.mark.parametrize("name", ["x" * 257, "a%00b", "a%0Ab", "%2E", "%2E%2E", "a%FFb", "%ED%A0%80"])
def test_declare_table_refuses_what_is_no_name(raw: Raw, namespace: str, name: str) -> None:
    response = raw.http.request("POST", f"/v1/table/{namespace}%24{name}/declare", json={})
    assert code(response) == (400, 13)


def test_delimiter_dot_reaches_the_root(
    generated: u.ApiClient, rest: Any, raw: Raw, namespace: str, server: Any
) -> None:
    raw.post(f"/v1/table/{namespace}$t/declare")
    dotted = rust.RestNamespace(uri=server.url, delimiter=".")
    assert namespace in dotted.list_namespaces(rust.ListNamespacesRequest(id=[])).namespaces
    assert dotted.list_tables(rust.ListTablesRequest(id=[namespace])).tables == ["t"]
    assert raw.get("/v1/namespace/list?delimiter=.").status_code == 200
    assert "tables" in raw.get("/v1/namespace/table/list?delimiter=.").json()


def test_concurrent_declares_of_one_name_have_one_winner(raw: Raw, namespace: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: raw.post(f"/v1/table/{namespace}$same/declare").status_code, range(16)))
    assert sorted(statuses) == [200, *[409] * 15]


def test_drop_namespace_against_declares_never_leaves_an_orphan(raw: Raw, fresh: Fresh) -> None:
    for _ in range(10):
        name = fresh("race")
        raw.post(f"/v1/namespace/{name}/create")
        with ThreadPoolExecutor(2) as pool:
            dropped = pool.submit(raw.post, f"/v1/namespace/{name}/drop")
            declared = pool.submit(raw.post, f"/v1/table/{name}$t/declare")
        outcome = (dropped.result().status_code, declared.result().status_code)
        assert outcome in {(200, 404), (409, 200)}


def test_wrong_routes_and_methods_have_the_one_error_shape(raw: Raw) -> None:
    assert code(raw.get("/nothing/here"))[0] == 404
    assert code(raw.post("/v1/table/a/fly")) == (406, 0)
    refused = raw.get("/v1/table/a/describe")
    assert code(refused)[0] == 405 and refused.headers["allow"] == "POST"
    assert code(raw.http.post("/v1/namespace/a/create", content=b"{")) == (400, 13)
    assert code(raw.http.post("/v1/namespace/a/create", content=b"[]")) == (400, 13)
    assert code(raw.http.post("/v1/namespace/a/create", content=b"\xff")) == (400, 13)
    assert code(raw.http.post("/v1/namespace/a/create", content=b"[" * 100_000)) == (400, 13)
    assert code(raw.http.post("/v1/namespace/a/create", content=b" " * (17 << 20)))[0] == 413


def test_request_id_is_kept_where_it_is_fit_for_a_log(raw: Raw) -> None:
    assert raw.get("/v1/table", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert raw.get("/v1/table", headers={"x-request-id": "a" * 200}).headers["x-request-id"] != "a" * 200


def test_health_asks_database_and_storage(raw: Raw) -> None:
    assert raw.get("/health/live").json()["status"] == "ok"
    assert raw.get("/health/ready").json() == {"status": "ok", "checks": {"database": "ok", "storage": "ok"}}


def test_openapi_names_every_operation_of_the_contract(raw: Raw) -> None:
    paths = raw.get("/openapi.json").json()["paths"]
    names = {operation["operationId"] for methods in paths.values() for operation in methods.values()}
    assert {"CreateNamespace", "DescribeTable", "ListAllTables"} <= names
