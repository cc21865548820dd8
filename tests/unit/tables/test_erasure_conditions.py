"""A condition has other names of its columns, or is none where it cannot be told what a word of it is."""

from __future__ import annotations

import pytest

from tiltyard.tables.erasure.conditions import columns_of, rename_columns

NAMES = {"user": "person", "mail": "the mail", "date": "day"}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("user = 7", "person = 7"),
        ("`user` = 7 AND mail = 'user mail'", "person = 7 AND `the mail` = 'user mail'"),
        ("user.mail = 'it''s' OR other.user = 1", "person.mail = 'it''s' OR other.user = 1"),
        ("mail IN ('a', 'b') AND user(mail) > 1", "`the mail` IN ('a', 'b') AND user(`the mail`) > 1"),
        ("`date` > date '2020-01-01'", None),
        ("`date` > '2020-01-01'", "day > '2020-01-01'"),
        ("date > '2020-01-01'", None),
        ("User = 7", None),
        ("mail = \"user\"", None),
        ("city = 'user'", "city = 'user'"),
    ],
)  # fmt: skip
def test_columns_have_their_other_names(condition: str, expected: str | None) -> None:
    assert rename_columns(condition, NAMES) == expected


def test_a_swap_of_names_is_one() -> None:
    assert rename_columns("a = 1 AND b = 2", {"a": "b", "b": "a"}) == "b = 1 AND a = 2"


def test_where_no_name_is_another_one_the_condition_stays_as_it_is() -> None:
    assert rename_columns('date > DATE "x"', {"date": "date"}) == 'date > DATE "x"'


def test_columns_are_read_by_their_names_and_not_by_those_of_fields_and_in_texts() -> None:
    names = ["user", "mail", "of", "the user", "City"]
    assert columns_of("user.mail = 'of' AND `the user` > 1 AND city = 2", names) == ["user", "the user", "City"]
