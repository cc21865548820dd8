"""Routes are matched on the raw path."""

from __future__ import annotations

import pytest

from tiltyard.api.errors import HttpError
from tiltyard.api.routing import Route, Router
from tiltyard.model.operations import bound_operations

ROUTER = Router(Route(operation, handler) for operation, handler in bound_operations().values())


@pytest.mark.parametrize(
    "method,path,name,segments",
    [
        ("POST", b"/v1/table/a%2Fb/describe", "DescribeTable", {"id": b"a%2Fb"}),
        ("POST", b"//v1/table/a/describe", "DescribeTable", {"id": b"a"}),
        ("POST", b"/v1/table/a/describe/", "DescribeTable", {"id": b"a"}),
        ("POST", b"/v1/table/version/create", "CreateTable", {"id": b"version"}),
        ("POST", b"/v1/table/version/batch-create", "BatchCreateTableVersions", {}),
        ("POST", b"/v1/table/version/version/list", "ListTableVersions", {"id": b"version"}),
        ("GET", b"/v1/table", "ListAllTables", {}),
        ("GET", b"/v1/table/t/count_rows", "CountTableRows", {"id": b"t"}),
        ("POST", b"/v1/table/t/index/i%20x/stats", "DescribeTableIndexStats", {"id": b"t", "index_name": b"i%20x"}),
        ("GET", b"/v1/namespace/table/list", "ListNamespaces", {"id": b"table"}),
        ("POST", b"/v1/table/t/enable_rte", "EnableTableRte", {"id": b"t"}),
        ("POST", b"/v1/table/t/set_lsm_write_spec", "EnableTableRte", {"id": b"t"}),
    ],
)
def test_match_takes_the_raw_path_apart(method: str, path: bytes, name: str, segments: dict[str, bytes]) -> None:
    route, values = ROUTER.match(method, path)
    assert (route.operation.name, values) == (name, segments)


def test_match_puts_back_the_root_that_clients_drop_with_the_delimiter_dot() -> None:
    assert ROUTER.match("GET", b"/v1/namespace/list", True)[1] == {"id": b"."}
    assert ROUTER.match("GET", b"/v1/namespace/table/list", True)[0].operation.name == "ListTables"
    assert ROUTER.match("GET", b"/v1/namespace/a/list", True)[1] == {"id": b"a"}


@pytest.mark.parametrize(
    "method,path,status", [("POST", b"/v1/table/a/fly", 406), ("POST", b"/x", 404), ("GET", b"/v1/table/a/drop", 405)]
)
def test_match_refuses_with_the_status_that_fits(method: str, path: bytes, status: int) -> None:
    with pytest.raises(HttpError) as raised:
        ROUTER.match(method, path)
    assert raised.value.status == status
