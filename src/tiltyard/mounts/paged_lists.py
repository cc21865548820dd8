"""Cut pages for callers out of a backend's lists, whose pages are smaller, larger, or not there at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from lance_namespace.errors import InternalError, InvalidInputError

from tiltyard.mounts.mounted_catalog import check_limit

T = TypeVar("T")

Fetch = Callable[[str, int | None], tuple[Sequence[T], str | None]]
"""Return a page of the backend's list and the next one's token: of the page with a token, empty for the first, and the
number of entries to ask for, None for any number."""


def all_kept(entries: Sequence[object]) -> Sequence[bool]:
    """Keep each entry."""
    return [True] * len(entries)


def collect_page(
    backend: str,
    fetch: Fetch[T],
    limit: int | None,
    token: str | None,
    is_kept: Callable[[Sequence[T]], Sequence[bool]] = all_kept,
) -> tuple[list[T], str | None]:
    """Return at most `limit` entries of those that are kept, and the token of the next page; None on the last.

    A token is a page of the backend's, and how many of its entries have been returned or left out already. Raises
    InvalidInputError for another one, InternalError where the backend's pages repeat.
    """
    check_limit(limit)
    page, position = _decoded(token)
    seen, collected = {page}, list[T]()
    while True:
        room = None if limit is None else limit - len(collected)
        entries, following = fetch(page, None if room is None else position + room)
        while position < len(entries):
            room = None if limit is None else limit - len(collected)
            if room == 0:
                return collected, _encoded(page, position)
            chunk = entries[position : None if room is None else position + room]
            collected += [entry for entry, kept in zip(chunk, is_kept(chunk), strict=True) if kept]
            position += len(chunk)
        if not following:
            return collected, None
        if following in seen:
            raise InternalError(f"{backend} repeats a page.")
        page, position = following, 0
        seen.add(page)
        if limit is not None and len(collected) >= limit:
            return collected, _encoded(page, 0)


def _encoded(page: str, position: int) -> str:
    return msgspec.json.encode((page, position)).decode()


def _decoded(token: str | None) -> tuple[str, int]:
    if not token:
        return "", 0
    try:
        page, position = msgspec.json.decode(token, type=tuple[str, int])
    except msgspec.MsgspecError as error:
        raise InvalidInputError("The page token is none of this list's.") from error
    return page, max(0, position)
