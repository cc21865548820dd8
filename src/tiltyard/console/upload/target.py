"""The table that gets the rows of a file, a new one or one that exists, and what its reader may do to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.calls.caller import schema_query
from tiltyard.model.ids import Id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from tiltyard.console.page import PageRequest
    from tiltyard.console.page_calls import PageCalls

CREATE, APPEND, OVERWRITE, UPSERT = "create", "append", "overwrite", "upsert"
MODES: Mapping[str, str] = {
    APPEND: "Add the rows",
    UPSERT: "Update rows of the same key, add the others",
    OVERWRITE: "Replace all rows and columns",
}
"""What a file can do to a table that exists."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is done with the rows: `path` is the table, `mode` how it gets them, `key` the columns of an upsert."""

    path: Id
    mode: str
    key: Sequence[str] = ()

    @classmethod
    def of_new(cls, page: PageRequest) -> Target:
        """Return the table that a form names, to be created in the namespace of the page."""
        return cls(Id((*page.path, page.text("name"))), CREATE)

    @classmethod
    def of_existing(cls, page: PageRequest) -> Target:
        """Return what a form wants of the table of the page. Raises InvalidInputError."""
        mode = page.text("mode", APPEND)
        if mode not in MODES:
            raise InvalidInputError(f"Rows are added, updated or replaced ({', '.join(MODES)}), not '{mode[:40]}'.")
        return cls(page.path, mode, page.all_of("key") if mode == UPSERT else ())

    @property
    def keeps_columns(self) -> bool:
        """Whether the rows get the columns of the table, and not the table those of the rows."""
        return self.mode in (APPEND, UPSERT)

    def request(self) -> tuple[str, dict[str, Any]]:
        """Return the operation that writes the rows, and its fields. Raises InvalidInputError without a key."""
        id_ = list(self.path)
        if self.mode == CREATE:
            return "CreateTable", {"id": id_, "mode": "create"}
        if self.mode != UPSERT:
            return "InsertIntoTable", {"id": id_, "mode": self.mode}
        if not self.key:
            raise InvalidInputError("Choose the columns of the key, by which rows are the same.")
        fields = {"on": list(self.key), "when_matched_update_all": True, "when_not_matched_insert_all": True}
        return "MergeInsertIntoTable", {"id": id_, **fields}

    def authorize(self, calls: PageCalls) -> None:
        """Check that the rows may be written, before the file comes. Raises what writing them would raise."""
        if self.mode == CREATE:
            check_creates(calls, self.path.parent)
            return
        name, fields = Target(self.path, self.mode, self.key or ("key",)).request()
        calls.authorize(name, **fields)

    def schema(self, calls: PageCalls) -> pa.Schema | None:
        """Return the columns that the rows have to have; None where they decide that. Raises what describing raises."""
        if (
            not self.keeps_columns
            or calls.call("DescribeTable", id=list(self.path), check_declared=True).is_only_declared
        ):
            return None
        with calls.rows(**schema_query(self.path)) as answer:
            return answer.schema


def check_creates(calls: PageCalls, namespace: Id) -> None:
    """Check that tables may be created in a namespace. Raises what creating one raises."""
    calls.authorize("DeclareTable", id=[*namespace, "table"])


def offered_modes(calls: PageCalls, table: Id) -> dict[str, str]:
    """Return what its reader may do to a table that exists."""
    requests = {mode: Target(table, mode, ("key",)).request() for mode in MODES}
    return {mode: MODES[mode] for mode, (name, fields) in requests.items() if calls.allows(name, **fields)}
