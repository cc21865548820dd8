"""What the checks of a contract have found of rows before they were written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import json


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
    return json.encode(found).decode() if found else None
