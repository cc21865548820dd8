"""Which requests a commit fulfils, as Lance's own transactions carry it: so even a commit whose answer was lost with
its server, and which the catalog knows nothing of, is found again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance

REQUESTS = "tiltyard.requests"


def marks(rows: Mapping[str, int]) -> dict[str, str]:
    """Properties of a transaction, from the rows that each request brought; none for requests without a key."""
    return {REQUESTS: json.dumps(rows)} if rows else {}


def marked_rows(transaction: lance.Transaction | None, request: str) -> int | None:
    """How many rows a request brought to a transaction; None if it has no part in it."""
    if transaction is None:
        return None
    marked = (transaction.transaction_properties or {}).get(REQUESTS)
    found: int | None = json.loads(marked).get(request) if marked else None
    return found
