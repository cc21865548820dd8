"""Cut pages for callers out of a backend's lists, whose pages are smaller, larger, or not there at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from zlib import crc32

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.mounts.mounted_catalog import check_limit

T = TypeVar("T")

Fetch = Callable[[str, int | None], tuple[Sequence[T], str | None]]
"""Return a page of the backend's list and the next one's token: of the page with a token, empty for the first, and the
number of entries to ask for, None for any number."""

MAX_EMPTY_PAGES = 100
"""Pages without an entry that a backend's list may have one after the other, also over several requests."""


class _Position(msgspec.Struct, array_like=True):
    """Where a list goes on: at which entry of the backend's page with a token.

    `last` is a checksum of the page before it, 0 for none; `empty` counts pages without entries up to here.
    """

    page: str
    entry: int
    last: int = 0
    empty: int = 0


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
    InvalidInputError for another one, MalformedAnswerError where the backend's pages repeat or do not end.
    """
    check_limit(limit)
    at = _decoded(token)
    seen, collected = {at.page}, list[T]()
    while True:
        room = None if limit is None else limit - len(collected)
        entries, following = fetch(at.page, None if room is None else at.entry + room)
        while at.entry < len(entries):
            room = None if limit is None else limit - len(collected)
            if room == 0:
                return collected, _encoded(at)
            chunk = entries[at.entry : None if room is None else at.entry + room]
            collected += [entry for entry, kept in zip(chunk, is_kept(chunk), strict=True) if kept]
            at.entry += len(chunk)
        if not following:
            return collected, None
        at = _following(backend, at, entries, following)
        if following in seen:
            raise MalformedAnswerError(f"{backend} repeats a page.")
        seen.add(following)
        if limit is not None and len(collected) >= limit:
            return collected, _encoded(at)


def _following(backend: str, at: _Position, entries: Sequence[object], page: str) -> _Position:
    """Return the position at the beginning of the next page. Raises MalformedAnswerError for a list without an end."""
    if page == at.page:
        raise MalformedAnswerError(f"{backend} repeats a page.")
    if not entries:
        if at.empty >= MAX_EMPTY_PAGES:
            raise MalformedAnswerError(f"{backend} has a list that does not end: {MAX_EMPTY_PAGES} pages are empty.")
        return _Position(page, 0, at.last, at.empty + 1)
    checksum = crc32(msgspec.json.encode(list(entries)))
    if checksum == at.last:
        raise MalformedAnswerError(f"{backend} repeats a page.")
    return _Position(page, 0, checksum, 0)


def _encoded(at: _Position) -> str:
    return msgspec.json.encode(at).decode()


def _decoded(token: str | None) -> _Position:
    if not token:
        return _Position("", 0)
    try:
        at = msgspec.json.decode(token, type=_Position)
    except msgspec.MsgspecError as error:
        raise InvalidInputError("The page token is none of this list's.") from error
    at.entry = max(0, at.entry)
    return at
