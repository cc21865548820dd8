"""Which requests a commit fulfils, as Lance's own transactions carry it: so even a commit whose answer was lost with
its server, and which the catalog knows nothing of, is found again.
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
    """Properties of a transaction, from the rows that each request brought; none for requests without a key."""
    return {REQUESTS: json.dumps(rows)} if rows else {}


def marked_rows(transaction: lance.Transaction | None, request: str) -> int | None:
    """Return how many rows a request brought to a transaction; None if it has no part in it.

    A client that commits itself can write anything into the property: what is no such mark is none.
    """
    text = (transaction.transaction_properties or {}).get(REQUESTS) if transaction else None
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, int]).get(request)
    except (msgspec.MsgspecError, RecursionError):
        return None
