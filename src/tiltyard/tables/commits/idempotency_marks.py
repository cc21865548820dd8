"""Idempotency marks in Lance's transactions: which requests a commit fulfils, and how many rows each brought.

By them a commit is found whose response was lost with its server, and which the catalog does not know.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance

REQUESTS = "tiltyard.requests"


def marks(rows: Mapping[str, int]) -> dict[str, str]:
    """Return properties for a transaction, from the rows by request id; none without idempotent requests."""
    return {REQUESTS: json.dumps(rows)} if rows else {}


def marked_rows(transaction: lance.Transaction | None, request: str) -> int | None:
    """Return how many rows a request brought to a transaction; None if it has no part in it.

    A client that commits by itself can write anything into the property: what is no valid mark is ignored.
    """
    text = (transaction.transaction_properties or {}).get(REQUESTS) if transaction else None
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, int]).get(request)
    except (msgspec.MsgspecError, RecursionError):
        return None
