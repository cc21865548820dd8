"""The estimated growth of rows by an expression: from its text, since Lance would compute it and crash the process."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError

from tiltyard.tables.lance_sql.amplification import MAX_GROWTH, MAX_TEXT_LENGTH, check_growth, estimate_growth


@pytest.mark.parametrize(
    ("text", "growth"),
    [
        ("id > 5", 1),
        ("range > 5 AND repeat = 'replace(x)'", 1),
        ("lower(replace(replace(name, '-', ''), ' ', '_'))", 1),
        ("regexp_replace(name, '(a)', '$1$1', 'g')", 4),
        ("lpad(name, 5, '0')", 5),
        ("repeat('*', length(ssn) - 4) || right(ssn, 4)", 5),
        ("repeat (name, 20)", 20),
        ("`repeat`('x', 20)", 20),
        ("repeat(repeat('x', 20), 20)", 400),
        ("repeat('" + "x" * 100 + "', 20)", 200),
        ("array_repeat(1, 30)[1]", 30),
        ("array_repeat(0.0, 3072)", 3072),
        ("array_repeat([" + "1, " * 99 + "1], 20)", 200),
        ("array_to_string(range(0, 100), ', ')", 200),
        ("concat_ws(', ', a, b)", 2),
        ("replace(a, b, c)", 100),
        ("encode(encode(a, 'hex'), 'hex')", 4),
        ("arrow_cast(v, 'FixedSizeList(1536, Float32)')", 1),
    ],
)
def test_growth_of_an_expression_is_what_its_numbers_say(text: str, growth: float) -> None:
    assert estimate_growth(text, "filter") == growth


@pytest.mark.parametrize(
    "text",
    [
        "array_repeat(1, 1000000000)",
        "`array_repeat`(1, 1000000000)",
        "length(repeat('x', 1_000_000_000))",
        "repeat('x', 0x7fffffff)",
        "repeat('x', +1000000000)",
        "LPAD('x', 2147483647, 'y')",
        "list_resize([1], 1000000000, 1)",
        "range(-1000000000, 0)",
        "repeat(repeat(repeat('x', 1000), 1000), 1000)",
        "repeat(lower(repeat('x', 1000)), 1000)",
        "replace('" + "a" * 1000 + "', 'a', '" + "b" * 1001 + "')",
        "replace(repeat('a', 900), 'a', repeat('b', 900))",
        "encode(" * 13 + "a" + ", 'hex')" * 13,
        "coalesce(" * 3 + "repeat('x', 4097" + ")" * 4,
    ],
)
def test_check_growth_of_what_would_fill_the_memory_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="times as large"):
        check_growth({"filter": text})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("repeat('x', id)", "does not say by a plain number how much repeat"),
        ("repeat('x', length)", "does not say by a plain number"),  # a column of that name
        ("repeat('x', length(name) + length)", "does not say by a plain number"),
        ("repeat('x', `length`)", "does not say by a plain number"),
        ("repeat('x', -(-1000000000))", "does not say by a plain number"),
        ("repeat('x', 10 * 1000000000)", "does not say by a plain number"),
        ("repeat('x', (1000000000))", "does not say by a plain number"),
        ("repeat(ssn, length(ssn))", "does not say by a plain number"),
        ("range(0, length(ssn))", "does not say by a plain number"),
        ("generate_series(timestamp '2020-01-01', timestamp '2030-01-01', interval '1 second')", "plain number"),
        ("repeat/* */('x', 20)", "has a comment"),
        ("'\\' || repeat(1, 20)", "has a comment"),
        ("arrow_cast(NULL, 'FixedSizeList(200000000, Int64)')", "type of 200000000 entries"),
        ("arrow_cast(NULL, 'FixedSizeList(1000, FixedSizeBinary(1000))')", "type of 1000000 entries"),
    ],
)
def test_growth_that_cannot_be_estimated_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        estimate_growth(text, "filter")


def test_check_growth_counts_all_expressions_of_a_request_together() -> None:
    check_growth({f"c{number}": "lpad(name, 10)" for number in range(MAX_GROWTH // 10)} | {"plain": "name"})
    with pytest.raises(InvalidInputError, match="expressions of this request would make rows 4100 times"):
        check_growth({f"c{number}": "lpad(name, 10)" for number in range(MAX_GROWTH // 10 + 1)})


def test_check_growth_of_a_long_text_is_refused_for_every_row_alone() -> None:
    text = f"'{'x' * MAX_TEXT_LENGTH}'"
    check_growth({"filter": f"name = {text}"})
    with pytest.raises(InvalidInputError, match="characters, for every row"):
        check_growth({"expression of 'x'": text}, is_output=True)


@pytest.mark.parametrize(
    "text",
    [
        "fixedsize" * 100_000,
        "'" + "fixedsize" * 100_000,
        "repeat('" + "''a" * 100_000,
        "repeat(" + "(" * 1_000_000,
        "repeat(" + '"a' * 100_001,
        "repeat(" + "1" * 300_000 + ")",
    ],
)
def test_growth_of_a_long_text_is_estimated_in_linear_time(text: str) -> None:
    started = time.process_time()
    with suppress(InvalidInputError):
        estimate_growth(text, "filter")
    assert time.process_time() - started < 2  # a look from each place to the end would take minutes


@given(st.text(alphabet="repat()[],'\"`0189-+ \\", max_size=200).map(lambda text: f"repeat({text}"))
def test_growth_of_any_text_is_estimated_or_refused(text: str) -> None:
    with suppress(InvalidInputError):
        assert estimate_growth(text, "filter") >= 1
