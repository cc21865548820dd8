"""Modes and other enumerations of the wire; parsed case-insensitively, in PascalCase or snake_case."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from lance_namespace.errors import InvalidInputError


class CreateMode(StrEnum):
    """What creating does where the name exists."""

    CREATE = "Create"
    EXIST_OK = "ExistOk"
    OVERWRITE = "Overwrite"


class RegisterMode(StrEnum):
    """What registering does where the name exists."""

    CREATE = "Create"
    OVERWRITE = "Overwrite"


class DropMode(StrEnum):
    """What dropping does where the object does not exist."""

    FAIL = "Fail"
    SKIP = "Skip"


class DropBehavior(StrEnum):
    """What dropping a namespace does with its contents."""

    RESTRICT = "Restrict"
    CASCADE = "Cascade"


class InsertMode(StrEnum):
    """Whether inserted rows are appended or replace the table's rows."""

    APPEND = "Append"
    OVERWRITE = "Overwrite"


class TransactionStatus(StrEnum):
    """The status of a transaction; a run that its submitter's own process drove, and that process is gone, is LOST."""

    QUEUED = "Queued"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"
    LOST = "Lost"

    @property
    def is_final(self) -> bool:
        """Whether the status changes no more, unless the transaction is resumed."""
        return self not in (TransactionStatus.QUEUED, TransactionStatus.RUNNING)

    @property
    def specified(self) -> TransactionStatus:
        """The status in the words of the specification, which knows no lost transaction."""
        return TransactionStatus.FAILED if self is TransactionStatus.LOST else self


class SetPropertyMode(StrEnum):
    """What setting a property does where the key exists."""

    OVERWRITE = "Overwrite"
    FAIL = "Fail"
    SKIP = "Skip"


class UnsetPropertyMode(StrEnum):
    """What unsetting a property does where the key is missing."""

    SKIP = "Skip"
    FAIL = "Fail"


class Outcome(StrEnum):
    """How a request ended: done; replayed from its first attempt; denied; failed; cut off within its response."""

    OK = "ok"
    REPEATED = "repeated"
    REFUSED = "refused"
    FAILED = "failed"
    CUT = "cut"


Mode = TypeVar("Mode", bound=StrEnum)


def parse_mode(kind: type[Mode], text: str | None, default: Mode, word: str = "mode") -> Mode:
    """Return the member that `text` names, `default` for None. Raises InvalidInputError, which calls it a `word`."""
    if text is None:
        return default
    member = _member(kind, text, word)
    assert isinstance(member, kind)
    return member


def _member(kind: type[StrEnum], text: str, word: str) -> StrEnum:
    normalized = text.replace("_", "").replace("-", "").lower()
    for member in kind:
        if member.value.replace("_", "").lower() == normalized:
            return member
    choices = ", ".join(member.value for member in kind)
    raise InvalidInputError(f"'{text}' is no {word}: choose one of {choices}.")


class ProtectionKind(StrEnum):
    """The kinds of protection. Each holds for the object that it is set on, and for all below that."""

    DELETION = "deletion"
    """Not dropped, deregistered, replaced, or moved out of where it is protected."""
    HOLD = "hold"
    """Legal hold: besides, nothing of it is collected: no old version, no file, nothing that was dropped before."""
    READ_ONLY = "read_only"
    """Nothing is changed; reads go on."""
    APPROVAL = "approval"
    """Some operations run only once a second principal has approved the call."""


KEPT_BY = (ProtectionKind.HOLD, ProtectionKind.READ_ONLY)
"""The kinds under which nothing is collected."""
