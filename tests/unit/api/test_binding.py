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
