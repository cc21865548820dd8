"""Pages of a list: a limit, and an opaque token that says after which key the next page starts."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from lance_namespace.errors import InvalidInputError

T = TypeVar("T")

LARGEST_PAGE = 1000
_SIGNATURE_BYTES = 6


class Paging:
    """Makes and reads page tokens of one server (all replicas share the secret, which lives in the catalog)."""

    def __init__(self, secret: bytes, largest: int = LARGEST_PAGE) -> None:
        self._secret = secret
        self._largest = largest

    def _sign(self, scope: str, body: bytes) -> bytes:
        return hmac.digest(self._secret, scope.encode() + b"\0" + body, hashlib.sha256)[:_SIGNATURE_BYTES]

    def token(self, scope: str, key: Any) -> str:
        """The token of the page after `key` in the list named `scope`."""
        body = msgspec.json.encode(key)
        return base64.urlsafe_b64encode(self._sign(scope, body) + body).decode().rstrip("=")

    def key(self, scope: str, token: str | None) -> Any:
        """The key a token stands for; None for the first page. Raises InvalidInputError for a forged token."""
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

    def name(self, scope: str, token: str | None) -> str | None:
        """The name that a token stands for in a list by names; one that is no token is such a name itself.

        Lance's own namespaces page by the last name of a page. Raises InvalidInputError for a token of another list.
        """
        if not token:
            return None
        try:
            return str(self.key(scope, token))
        except InvalidInputError:
            if _is_signed_name(token):
                raise
            return token

    def page(
        self,
        scope: str,
        token: str | None,
        limit: int | None,
        fetch: Callable[[Any, int], Sequence[T]],
        key_of: Callable[[T], Any],
        *,
        by_name: bool = False,
    ) -> tuple[Sequence[T], str | None]:
        """One page and the token of the next one (None on the last).

        `fetch(after, count)` answers up to `count` entries after a key; one more than the page is asked for, so that
        the last page has no token. In a list `by_name` the last name of a page is as good as its token.
        """
        size = page_size(limit, self._largest)
        after = self.name(scope, token) if by_name else self.key(scope, token)
        entries = fetch(after, size + 1)
        if len(entries) <= size:
            return entries, None
        return entries[:size], self.token(scope, key_of(entries[size - 1]))


def _is_signed_name(token: str) -> bool:
    """Whether a text is a token of some list by names: a signature, and a JSON text. No name happens to be that."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        msgspec.json.decode(raw[_SIGNATURE_BYTES:], type=str)
    except (ValueError, msgspec.MsgspecError):
        return False
    return True


def page_size(limit: int | None, largest: int) -> int:
    """How many entries a page holds: `largest` unless asked for fewer. Raises InvalidInputError below 1."""
    if limit is None:
        return largest
    if limit < 1:
        raise InvalidInputError(f"limit is {limit}: at least 1.")
    return min(limit, largest)


def namespaces_scope(path: Sequence[str]) -> str:
    """What the page tokens of one namespace's namespaces are bound to."""
    return f"namespaces {path!r}"


def tables_scope(path: Sequence[str]) -> str:
    """What the page tokens of one namespace's tables are bound to."""
    return f"tables {path!r}"
