"""Erasures of rows with their signed reports: `people.erase("user = 7")`, `lake.erasures()`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tiltyard.calls.caller import Caller


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure of rows: `outcome` is `running`, `complete`, `incomplete`, or `stopped` for one without a report."""

    calls: Caller
    id: str
    table: tuple[str, ...]
    outcome: str
    reference: str
    requested_by: str
    requested_at: datetime

    def report(self) -> Mapping[str, Any] | None:
        """Return the report as it was signed; None while there is none.

        Raises ValueError for one that was changed since, TransactionNotFoundError.
        """
        found = self.calls.call("DescribeErasure", erasure_id=self.id)
        if not found.get("report"):
            return None
        if not found["signature_is_valid"]:
            raise ValueError(f"The report of {self.id} is not as it was signed.")
        report: Mapping[str, Any] = json.loads(found["report"])
        return report


def list_erasures(calls: Caller) -> Iterator[Erasure]:
    """Yield the erasures that the caller may see, newest first."""
    for entry in calls.entries("ListErasures", "erasures"):
        yield _read(calls, entry)


def find_erasure(calls: Caller, erasure_id: str) -> Erasure:
    """Return an erasure. Raises TransactionNotFoundError."""
    return _read(calls, calls.call("DescribeErasure", erasure_id=erasure_id)["erasure"])


def _read(calls: Caller, entry: Mapping[str, Any]) -> Erasure:
    at = datetime.fromtimestamp(entry["requested_at_millis"] / 1000, UTC)
    names = tuple(entry["table"])
    return Erasure(calls, entry["id"], names, entry["outcome"], entry.get("reference") or "", entry["requested_by"], at)
