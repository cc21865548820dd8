"""The values of a query string become the fields of a request, or an error that names them."""

from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.api.binding import Binder, QueryString
from tiltyard.model.spec import models, operations


def bind(operation: str, query: QueryString, body: bytes = b"") -> object:
    return Binder(operations()[operation]).bind({"id": b"n$t"}, query, {}, body)


def test_query_values_have_the_types_of_their_fields() -> None:
    request = bind("ListTables", [("limit", "100"), ("page_token", "7"), ("include_declared", "true")])
    assert request == models.ListTablesRequest(id=["n", "t"], limit=100, page_token="7", include_declared=True)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("limit", "many", "Expected `int | null`, got `str`"),
        ("limit", str(2**63), "Expected `int` <= 9223372036854775807"),
        ("include_declared", "2", "Expected `bool | null`, got `str`"),
    ],
)
def test_query_value_of_another_type_is_refused_with_the_reason_alone(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        bind("ListTables", [(name, text)])
    assert str(refused.value).endswith(f"The query parameter {name} cannot be '{text}': {reason}")


def test_request_without_a_required_field_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="lacks 'location'"):
        bind("RegisterTable", [])


@pytest.mark.parametrize(
    ("operation", "body", "named"),
    [
        ("CreateApiKey", b'{"principal": "ann", "expire_in_seconds": 60}', "expire_in_seconds"),
        ("SetTablePolicy", b'{"name": "p", "mask": []}', "mask"),
        ("SetTablePolicy", b'{"name": "p", "masks": [{"column": "a", "mask": "null", "role": "x"}]}', "role"),
        ("GrantPrivileges", b'{"object_kind": "server", "grantee": "a", "privileges": [], "until": null}', "until"),
    ],
)
def test_unknown_field_of_an_operation_of_our_own_is_refused(operation: str, body: bytes, named: str) -> None:
    with pytest.raises(InvalidInputError, match=f"unknown field `{named}`"):
        bind(operation, [], body)
    with pytest.raises(InvalidInputError, match=f"{operation} has no parameter '{named}'"):
        bind(operation, [(named, "1")], b"{}")


@pytest.mark.parametrize("names", ['["n", "t"]', '["n$t"]', "[]", "null"])
def test_id_of_the_body_agrees_with_the_path_by_its_names_or_by_its_text(names: str) -> None:
    assert bind("DescribeTable", [], b'{"id": %s}' % names.encode()) == models.DescribeTableRequest(id=["n", "t"])


@pytest.mark.parametrize(
    ("names", "delimiter"), [('["t"]', "$"), ('["m$t"]', "$"), ('["n", "t", "t"]', "$"), ('["n$t"]', ".")]
)
def test_id_of_the_body_that_is_another_than_the_path_is_refused(names: str, delimiter: str) -> None:
    binder = Binder(operations()["DescribeTable"])
    with pytest.raises(InvalidInputError, match="make them agree"):
        binder.bind(
            {"id": b"n%st" % delimiter.encode()}, [("delimiter", delimiter)], {}, b'{"id": %s}' % names.encode()
        )


@pytest.mark.parametrize("operation", ["DescribeTable", "CreateTableIndex", "FetchTableBlobs"])
def test_unknown_field_of_an_operation_of_stock_clients_is_ignored(operation: str) -> None:
    body = b'{"column": "c", "index_type": "FTS", "row_ids": [], "newer": 1, "newest": null}'
    assert getattr(bind(operation, [("newer", "1"), ("delimiter", "$")], body), "id", None) == ["n", "t"]


def test_every_request_of_our_own_is_strict() -> None:
    own = [operation for operation in operations().values() if operation.is_own and operation.request]
    assert own and all(getattr(models, each.request).__struct_config__.forbid_unknown_fields for each in own)
