"""Pages of a list: a limit, and a signed, opaque token of the key after which the next page starts."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from lance_namespace.errors import InvalidInputError

T = TypeVar("T")
U = TypeVar("U")

MAX_PAGE_SIZE = 1000
_SIGNATURE_BYTES = 6


class Paging:
    """Makes and reads page tokens; all servers of a catalog share the secret, which is in its database."""

    def __init__(self, secret: bytes, largest: int = MAX_PAGE_SIZE) -> None:
        self._mac = hmac.new(secret, digestmod=hashlib.sha256)  # copied for each token: OpenSSL takes long to begin one
        self._largest = largest

    def _sign(self, scope: str, body: bytes) -> bytes:
        mac = self._mac.copy()
        mac.update(scope.encode() + b"\0" + body)
        return mac.digest()[:_SIGNATURE_BYTES]

    def make_token(self, scope: str, key: Any) -> str:
        """Return the token of the page after `key` in the list named `scope`."""
        body = msgspec.json.encode(key)
        return base64.urlsafe_b64encode(self._sign(scope, body) + body).decode().rstrip("=")

    def read_key(self, scope: str, token: str | None) -> Any:
        """Return the key of a token; None for the first page. Raises InvalidInputError for a token of another list."""
        if not token:
            return None
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
            if hmac.compare_digest(signature, self._sign(scope, body)):
                return msgspec.json.decode(body)
        except ValueError:  # binascii's is one
            pass
        raise InvalidInputError("This page token is not from this list: start again without one.")

    def read_name(self, scope: str, token: str | None) -> str | None:
        """Return the name of a token in a list by names; a text that is no token is such a name itself.

        Lance's own namespaces use the last name of a page as its token. Raises InvalidInputError for a token of another
        list.
        """
        if not token:
            return None
        try:
            return str(self.read_key(scope, token))
        except InvalidInputError:
            if _is_signed_name(token):
                raise
            return token

    def fetch_page(
        self,
        scope: str,
        token: str | None,
        limit: int | None,
        fetch: Callable[[Any, int], Sequence[T]],
        key_of: Callable[[T], Any],
        *,
        by_name: bool = False,
        is_listed: Callable[[T], bool] | None = None,
    ) -> tuple[Sequence[T], str | None]:
        """Return one page and the token of the next one (None on the last).

        `fetch(after, count)` returns up to `count` entries after a key, None for the first; a key of several values
        is a tuple. One more than the page is fetched, so that the last page has no token. In a list `by_name` the last
        name of a page is as good as its token. Entries that are not `is_listed` are left out, and pages are full.
        """
        size = page_size(limit, self._largest)
        after = self.read_name(scope, token) if by_name else self.read_key(scope, token)
        after = tuple(after) if isinstance(after, list) else after
        if is_listed is None:
            entries = fetch(after, size + 1)
        else:
            entries = fetch_chosen(fetch, after, size + 1, key_of, partial(filter, is_listed))
        if len(entries) <= size:
            return entries, None
        return entries[:size], self.make_token(scope, key_of(entries[size - 1]))

    def cut_page(
        self, scope: str, token: str | None, limit: int | None, entries: Mapping[str, T]
    ) -> tuple[dict[str, T], str | None]:
        """Return one page, by name, of entries that are all there, and the token of the next one (None on the last)."""

        def fetch(after: str | None, count: int) -> list[str]:
            return [name for name in sorted(entries) if after is None or name > after][:count]

        page, following = self.fetch_page(scope, token, limit, fetch, lambda name: name)
        return {name: entries[name] for name in page}, following


def fetch_chosen(
    fetch: Callable[[Any, int], Sequence[T]],
    after: Any,
    count: int,
    key_of: Callable[[T], Any],
    choose: Callable[[Sequence[T]], Iterable[U]],
) -> list[U]:
    """Return up to `count` of the entries after a key that are chosen; others are read as well, page by page.

    `choose` gets the entries of a page, and returns what the list has of them.
    """
    chosen: list[U] = []
    while True:
        page = fetch(after, count)
        chosen += choose(page)
        if len(chosen) >= count or len(page) < count:
            return chosen[:count]
        after = key_of(page[-1])


def _is_signed_name(token: str) -> bool:
    """Return whether a text is a token of some list by names: a signature, and a JSON text. No name looks like that."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        msgspec.json.decode(raw[_SIGNATURE_BYTES:], type=str)
    except (ValueError, msgspec.MsgspecError):
        return False
    return True


def page_size(limit: int | None, largest: int) -> int:
    """Return the size of a page: the limit, at most `largest`. Raises InvalidInputError for a limit below 1."""
    if limit is None:
        return largest
    if limit < 1:
        raise InvalidInputError(f"limit is {limit}: at least 1.")
    return min(limit, largest)


def namespaces_scope(path: Sequence[str]) -> str:
    """Return the scope of page tokens for the namespaces in one namespace."""
    return f"namespaces {path!r}"


def tables_scope(path: Sequence[str]) -> str:
    """Return the scope of page tokens for the tables in one namespace."""
    return f"tables {path!r}"
