"""Transactions whose connection to the catalog is cut: before them or after them, for a moment or longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.models.replay.actors import Called


class CutError(ServiceUnavailableError):
    """The connection to the catalog is cut; `is_made` says, to nobody but the trace, whether after the transaction.

    With `stays_away` the catalog cannot be asked what came of it, either.
    """

    def __init__(self, *, is_made: bool = False, stays_away: bool = False) -> None:
        super().__init__("The connection to the catalog was cut.")
        self.is_made = is_made
        self.stays_away = stays_away


def cut(call: Callable[[], Any]) -> Any:
    """Make no transaction. Raises CutError."""
    raise CutError


def commit_and_cut(call: Callable[[], Any], *, stays_away: bool = False) -> Any:
    """Make a transaction, of which its caller is not told. Raises CutError."""
    try:
        call()
    except LanceNamespaceError:
        raise CutError(stays_away=stays_away) from None
    raise CutError(is_made=True, stays_away=stays_away)


def is_made(called: Called) -> int:
    """Return 1 for a transaction that was made, whatever its caller was told, else 0."""
    return int(called.error is None or getattr(called.error, "is_made", False))
