"""What the checks of a contract have found of rows before they were written, and the rows that they reject.

Those are parked: lines of JSON, {"reason": …, "row": …}, in files of a folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(slots=True)
class CheckedRows:
    """What was found of the rows of one commit, by one contract: how many failed the checks that warn, by their texts.

    `rejected` rows are not in the commit. `is_complete` says that the commit brings no other rows.
    """

    contract: str
    warned: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    is_complete: bool = False

    @classmethod
    def together(cls, contract: str, parts: Iterable[CheckedRows], *, is_complete: bool) -> CheckedRows:
        """Return what was found of the rows of several requests that one commit brings."""
        whole = cls(contract, is_complete=is_complete)
        for part in parts:
            whole.warned += part.warned
            whole.rejected += part.rejected
        return whole

    def covers(self, contract: str) -> bool:
        """Return whether all rows of the commit have passed this contract."""
        return self.is_complete and self.contract == contract


def encode_checks(warned: Counter[str], rejected: int) -> str | None:
    """Return what the catalog keeps of a commit's checks; None where nothing was found."""
    found = {name: value for name, value in (("warned", dict(warned)), ("rejected", rejected)) if value}
    return msgspec.json.encode(found).decode() if found else None


FOLDER = "_rejects"
"""The folder of a table for rows that its contract rejects."""
ROWS_PER_FILE = 10_000


def encode_reject(reason: str, row: Any) -> bytes:
    """Return a line of JSON; values that JSON cannot represent become text."""
    return json.dumps({"reason": reason, "row": row}, default=to_text).encode() + b"\n"


def to_text(value: Any) -> str:
    """Return the text for a value that JSON cannot represent."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
