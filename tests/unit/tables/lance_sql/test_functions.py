"""The functions that SQL of a request may call: those of the allowlist, however the call is written."""

from __future__ import annotations

import re
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.tables.lance_sql.allowed_functions import FUNCTIONS, check_functions
from tiltyard.tables.lance_sql.expressions import check_expression


def test_documented_functions_are_those_of_the_list() -> None:
    """`array_…` stands for `list_…` too, there and here."""
    text = (Path(__file__).parents[4] / "docs" / "limits.md").read_text()
    documented = set(re.findall(r"`([a-z0-9_]+)`", text[text.index("### Functions") : text.index("## Query timeouts")]))
    assert documented == {
        name for name in FUNCTIONS if not name.startswith("list_") or f"array{name[4:]}" not in FUNCTIONS
    }


@pytest.mark.parametrize(
    "text",
    [
        "id IN (1, 2) AND (name LIKE 'a%' OR NOT (id = 3))",
        "lower(name) = 'version(' AND Upper (name) <> 'x'",
        "cast(id AS decimal(10, 2)) > 1 AND arrow_cast(id, 'Int32') = 1",
        "array_has(tags, 'a') AND list_contains(tags, 'b') AND st_contains(a, b)",
        "name = 'it''s version()' AND id BETWEEN (1) AND (2)",
        "name = '-- a comment' AND regexp_like(name, '(a|b)')",
    ],
)
def test_expression_of_listed_functions_passes(text: str) -> None:
    assert check_expression(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "version() = 'x'",
        "VERSION ( ) = 'x'",
        '"version"() = 1',
        "`version`() = 1",
        "array_transform(tags, x -> tags) = tags",
        "lower(name) = 'a' AND version() = 'x'",
        "id = 1 /* ' */ AND version() = 'x' /* ' */",
        "id = 1 -- '\n AND version() = 'x' -- '",
        "name = 'a\\' AND version() = 'b' AND name <> 'c'",
        "name = $$'$$ AND version() = $$'$$",
        '"a\'b" = 1 AND version() = "a\'b"',
        "a_function_of_tomorrow(id) = 1",
    ],
)
def test_expression_that_calls_another_function_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="not among the functions"):
        check_expression(text)


def test_expression_with_an_aggregate_is_told_that_it_is_about_one_row() -> None:
    with pytest.raises(InvalidInputError, match="about one row at a time: 'sum'"):
        check_functions("sum(id) > 1", "filter")


def test_long_words_take_linear_time() -> None:
    """A minute and more where each letter of a word begins a search through the rest of it."""
    started_at = time.process_time()
    for text in ("(" + "a" * 1_000_000, "(" + "'" * 999_999, '("' + "b" * 1_000_000, "(" + "a " * 500_000):
        check_functions(text, "filter")
    assert time.process_time() - started_at < 10


def test_every_listed_function_is_one_of_lance_or_of_sql(tmp_path: Path) -> None:
    """A name on the list that Lance does not know is a slip, or was taken out of Lance: look at the list again."""
    dataset = lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t.lance")
    parsed_otherwise = {"cast", "ceil", "extract", "floor", "mod", "overlay", "position", "substr", "substring", "trim"}
    unknown = set()
    for name in sorted(FUNCTIONS - parsed_otherwise - {"try_cast"}):
        try:
            dataset.scanner(filter=f"{name}(id) = 1").explain_plan()
        except (ValueError, OSError, RuntimeError) as error:  # the last one: Lance panics for want of an argument
            if "Invalid function" in str(error):
                unknown.add(name)
    assert unknown == set()
