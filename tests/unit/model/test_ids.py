"""Identifiers: what a path segment spells, and what no name may be."""

from __future__ import annotations

from urllib.parse import quote, quote_plus, unquote_to_bytes

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError

from tiltyard.model.ids import Id, check_id, check_name, decode_segment, parse_id

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=256).filter(
    lambda name: name not in (".", "..")
)


@given(
    st.lists(
        NAMES.filter(lambda name: "::" not in name and not name.endswith(":") and not name.startswith(":")), max_size=4
    )
)
def test_parse_id_of_an_encoded_id_is_that_id(names: list[str]) -> None:
    for encode in (lambda text: quote(text, safe=""), quote_plus):
        segment = encode("::".join(names) or "::").encode()
        assert parse_id(decode_segment(segment), "::") == tuple(names)


@given(st.lists(st.sampled_from([b"x", b"%24", b"%", b"2", b"4", b"24", b"%25", b"%2B", b"%20", b"\xc3\xbc"])))
def test_decode_segment_decodes_each_byte_once(parts: list[bytes]) -> None:
    assert decode_segment(b"".join(parts)) == unquote_to_bytes(b"".join(parts)).decode()


def test_decode_segment_plus_is_a_space_and_percent_2b_a_plus() -> None:
    assert decode_segment(b"a+b%2Bc%20d") == "a b+c d"


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "a\nb", "\x7f", "\ud800", "x" * 257])
def test_check_name_refuses_what_no_object_can_have(name: str) -> None:
    with pytest.raises(InvalidInputError):
        check_name(name)
    with pytest.raises(InvalidInputError):
        check_id(Id(("fine", name)))


@pytest.mark.parametrize("text,delimiter", [("a$", "$"), ("$a", "$"), ("a$$b", "$"), ("a", "")])
def test_parse_id_refuses_empty_names_and_delimiters(text: str, delimiter: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_id(text, delimiter)


@given(st.text(max_size=300))
def test_check_id_refuses_the_names_that_check_name_refuses(name: str) -> None:
    try:
        check_name(name)
    except InvalidInputError:
        with pytest.raises(InvalidInputError):
            check_id(Id((name,)))
    else:
        assert check_id(Id((name,))) == (name,)


def test_id_has_a_name_a_parent_and_a_text() -> None:
    path = parse_id("a$b$c", "$")
    assert (path.name, path.parent, str(path)) == ("c", ("a", "b"), "a$b$c")
    assert isinstance(path.parent, Id)
    assert (Id().parent, str(Id())) == (Id(), "$")
    with pytest.raises(IndexError):
        _ = Id().name


def test_id_is_found_as_the_tuple_of_its_names() -> None:
    assert {Id(("a", "b")): 1}["a", "b"] == 1
    assert msgspec.json.encode(Id(("a", "b"))) == b'["a","b"]'
