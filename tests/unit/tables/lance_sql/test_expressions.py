"""SQL in requests: one expression, not too deep for Lance to plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError

from tiltyard.tables.lance_sql.expressions import MAX_CHAIN, check_expression


@pytest.mark.parametrize(
    "text",
    [
        "id > 5",
        "",
        "name = 'a;b'",
        "id > 5 ; ",
        "_rowid IN (" + ", ".join(str(number) for number in range(100_000)) + ")",
        "id IN (" + ", ".join("-1" for _ in range(1000)) + ")",
        " or ".join(f"(id = {number} and not name like 'x%')" for number in range(1000)),
        "'" + "+" * 1000 + "' = name",
        "`" + "+" * 1000 + "` > 1",
        "coalesce(" + ", ".join("id + 1" for _ in range(1000)) + ") > 1",
    ],
)
def test_check_expression_that_can_be_planned_is_kept(text: str) -> None:
    assert check_expression(text) is text


@pytest.mark.parametrize(
    "text",
    [
        "id" + " + 1" * 1000 + " > 0",
        "id" + "::int" * 1000 + " > 0",
        "id" + " is null" * 1000,
        "name" + " || 'a'" * 1000 + " > 'a'",
        "(" * 40 + "id" + " + 1 + 1 + 1)" * 40 + " > 0",
        " or ".join(["id = 1"] * 100_000),
        "case when " * 30 + "id" + " - 1" * 200,
        "name like " * 200 + "'a'",
    ],
)
def test_check_expression_too_deep_to_plan_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="chains too many operators"):
        check_expression(text)


def test_check_expression_with_a_second_statement_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="predicate is one expression"):
        check_expression("id > 5; drop table t", "predicate")


@given(st.text(alphabet="()[],;'\"`+ or1a.\n", max_size=400))
def test_check_expression_of_any_text_is_kept_or_refused(text: str) -> None:
    try:
        assert check_expression(text) == text
    except InvalidInputError as error:
        calls = "(" in text and "not among the functions" in str(error)
        assert calls or ";" in text or text.count("+") + text.count("or") > MAX_CHAIN
