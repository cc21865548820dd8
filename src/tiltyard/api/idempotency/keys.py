"""Find the idempotency key of a request: its header `Idempotency-Key`, or the request id that lancedb repeats.

`docs/exactly-once.md` says which requests have one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.api.binding import TABLE_LOCATION, TABLE_PROPERTIES, Headers
from tiltyard.model.principals import EVERYBODY, Principal

if TYPE_CHECKING:
    from tiltyard.model.operations import Handler

KEY = b"idempotency-key"
REQUEST_ID = b"x-request-id"
MAX_KEY_BYTES = 255
DATABASE = b"x-lancedb-database"
CREDENTIALS = (b"authorization", b"x-api-key")
"""Headers that tell callers apart on a server without authentication."""


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What identifies a request and its repeats.

    - `id`: a digest of the key and the caller; the record in the catalog has it.
    - `scope`: method, URL and what else the key must not be reused for.
    - `is_matched_by_body`: the client retries under a new request id, so that a repeat is also found by its body.
    """

    id: str
    scope: str
    is_matched_by_body: bool = False


def read_key(
    handler: Handler, scope: dict[str, Any], headers: Headers, principal: Principal, is_lancedb: bool
) -> RequestKey | None:
    """Return the key of a request; None for one without a key, or whose operation, a change, takes none.

    Raises InvalidInputError for a header Idempotency-Key that is too long.
    """
    key = headers.get(KEY)
    is_request_id = key is None
    if is_request_id and is_lancedb:
        key = headers.get(REQUEST_ID)
    if key is None or not handler.keyed:
        return None
    if not 0 < len(key) <= MAX_KEY_BYTES:
        if is_request_id:
            return None  # it was not meant as a key
        raise InvalidInputError(f"The header Idempotency-Key has 1 to {MAX_KEY_BYTES} bytes.")
    target = b"%s %s?%s" % (scope["method"].encode(), scope["raw_path"], scope["query_string"])
    if fields := [headers[name] for name in (TABLE_LOCATION, TABLE_PROPERTIES) if name in headers]:
        target += b" %s" % hashlib.blake2b(b"\0".join(fields), digest_size=16).hexdigest().encode()
    # No caller gets another's responses; a principal is the same one when it comes again with a newer token.
    caller = [headers.get(name, b"") for name in CREDENTIALS] if principal is EVERYBODY else [principal.name.encode()]
    caller.append(headers.get(DATABASE, b""))
    id_ = _digest([key, *caller, target if is_request_id else b""])
    is_matched_by_body = is_request_id and handler.retried_with_new_ids
    if is_matched_by_body:
        target += b" of %s" % _digest(caller).encode()  # it is compared with requests under other ids
    return RequestKey(id_, target.decode("latin-1"), is_matched_by_body)


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.blake2b(b"\0".join(b"%d:%s" % (len(part), part) for part in parts), digest_size=16).hexdigest()
