"""Modes and other words of the wire as enums: case-insensitive, PascalCase or snake_case."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from lance_namespace.errors import InvalidInputError


class CreateMode(StrEnum):
    """What creating does when the name is taken."""

    CREATE = "Create"
    EXIST_OK = "ExistOk"
    OVERWRITE = "Overwrite"


class RegisterMode(StrEnum):
    """What registering does when the name is taken."""

    CREATE = "Create"
    OVERWRITE = "Overwrite"


class DropMode(StrEnum):
    """What dropping does when there is nothing to drop."""

    FAIL = "Fail"
    SKIP = "Skip"


class DropBehavior(StrEnum):
    """What dropping a namespace does with what is in it."""

    RESTRICT = "Restrict"
    CASCADE = "Cascade"


class InsertMode(StrEnum):
    """Whether inserted rows join or replace those there."""

    APPEND = "Append"
    OVERWRITE = "Overwrite"


class TransactionStatus(StrEnum):
    """Where long work stands."""

    QUEUED = "Queued"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self not in (TransactionStatus.QUEUED, TransactionStatus.RUNNING)


class SetPropertyMode(StrEnum):
    """What setting a property does when the key is there."""

    OVERWRITE = "Overwrite"
    FAIL = "Fail"
    SKIP = "Skip"


class UnsetPropertyMode(StrEnum):
    """What unsetting a property does when the key is missing."""

    SKIP = "Skip"
    FAIL = "Fail"


class Outcome(StrEnum):
    """How a call ended: done; answered with what its first try did; not allowed; not done; begun and broken off."""

    OK = "ok"
    REPEATED = "repeated"
    REFUSED = "refused"
    FAILED = "failed"
    CUT = "cut"


Mode = TypeVar("Mode", bound=StrEnum)


def parse_mode(kind: type[Mode], text: str | None, default: Mode, what: str = "mode") -> Mode:
    """The member that `text` names, `default` for none. Raises InvalidInputError for anything else."""
    if text is None:
        return default
    found = _member(kind, text, what)
    assert isinstance(found, kind)
    return found


@lru_cache(maxsize=256)  # of words that name something: an error is not kept
def _member(kind: type[StrEnum], text: str, what: str) -> StrEnum:
    wanted = text.replace("_", "").lower()
    for member in kind:
        if member.value.lower() == wanted:
            return member
    choices = ", ".join(member.value for member in kind)
    raise InvalidInputError(f"'{text}' is no {what}: choose one of {choices}.")
