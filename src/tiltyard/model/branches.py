"""Branches of a table: one type for what requests, the catalog's tables and Lance each write in their own way."""

from __future__ import annotations

import msgspec

from tiltyard.model.ids import check_name

_MAIN_NAME = "main"


class Branch(msgspec.Struct, frozen=True, gc=False):
    """A branch of a table, by its key: the name as the catalog's tables store it, "" for main.

    A request is turned into it once (`parse`); where its name is checked (`check`), the operation decides.
    """

    key: str = ""

    @classmethod
    def parse(cls, name: str | None) -> Branch:
        """Return the branch that a request, a stored record or Lance names; None, "" and "main" are main."""
        return MAIN if not name or name == _MAIN_NAME else cls(name)

    def check(self) -> Branch:
        """Return the branch if a branch can have its name. Raises InvalidInputError."""
        if self.key:
            check_name(self.key, "branch")
        return self

    @property
    def is_main(self) -> bool:
        return not self.key

    @property
    def name(self) -> str:
        """The name as users know it: "main" for main."""
        return self.key or _MAIN_NAME

    @property
    def folder(self) -> str:
        """The folder of the files that were written on the branch, relative to the table's: "" for main."""
        return f"tree/{self.key}" if self.key else ""

    def base(self, location: str) -> str:
        """Return where files of the branch are written, of the table at a location."""
        return f"{location}/{self.folder}" if self.key else location

    @property
    def lance_name(self) -> str | None:
        """The name as pylance takes and returns it: None for main."""
        return self.key or None


MAIN = Branch()
