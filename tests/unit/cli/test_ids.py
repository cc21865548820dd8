"""Ids as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.cli.session.ids import format_id, parse_typed_id, suggest
from tiltyard.model.ids import wire_delimiter


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("films", ("films",)),
        ("library.books", ("library", "books")),
        ("library$books", ("library", "books")),
        (".", ()),
        ("$", ()),
        ('a."b.c"', ("a", "b.c")),
        ('"say ""hi"""', ('say "hi"',)),
    ],
)
def test_parse_typed_id_reads_dots_dollars_and_quotes(text: str, names: tuple[str, ...]) -> None:
    assert parse_typed_id(text) == names


@pytest.mark.parametrize("text", ["a.", ".a", "a..b", '"a', '""'])
def test_parse_typed_id_refuses_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        parse_typed_id(text)


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4))
def test_format_id_is_read_back(names: list[str]) -> None:
    assert parse_typed_id(format_id(names)) == tuple(names)


def test_wire_delimiter_is_in_no_name() -> None:
    assert wire_delimiter(["a", "b"]) == "$"
    assert wire_delimiter(["a$b", "c/d|~!"]) not in "a$bc/d|~!"


def test_suggest_names_what_is_near() -> None:
    assert suggest("flims", ["films", "actors"]) == ["films"]
    assert suggest("FILMS", ["films"]) == ["films"]
    assert suggest("zebra", ["films", "actors"]) == []
