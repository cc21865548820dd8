"""Page tokens: opaque, bound to their list, and not to be forged."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError

from tiltyard.model.paging import Paging, page_size

PAGING = Paging(b"secret")


@given(st.text(), st.one_of(st.text(), st.lists(st.integers(0, 2**53) | st.text(), max_size=3)))
def test_token_gives_its_key_back_to_its_own_list_only(scope: str, key: object) -> None:
    token = PAGING.make_token(scope, key)
    assert PAGING.read_key(scope, token) == key
    with pytest.raises(InvalidInputError):
        PAGING.read_key(scope + "x", token)


@given(st.text(), st.binary(max_size=40))
def test_key_refuses_forged_tokens(scope: str, forged: bytes) -> None:
    with pytest.raises(InvalidInputError):
        PAGING.read_key(scope, base64.urlsafe_b64encode(b"x" + forged).decode())


@pytest.mark.parametrize("token", ["é", "a b", "====", "a"])
def test_key_refuses_what_is_no_token(token: str) -> None:
    with pytest.raises(InvalidInputError):
        PAGING.read_key("s", token)


def test_page_walks_the_whole_list_and_ends_without_a_token() -> None:
    names = [f"n{number:02}" for number in range(10)]
    seen: list[str] = []
    token: str | None = None
    while True:
        page, token = PAGING.fetch_page(
            "s", token, 3, lambda after, count: [n for n in names if n > (after or "")][:count], lambda n: n
        )
        seen += page
        if token is None:
            break
    assert seen == names


@pytest.mark.parametrize("limit", [0, -1])
def test_page_size_refuses_less_than_one(limit: int) -> None:
    with pytest.raises(InvalidInputError):
        page_size(limit, 10)
