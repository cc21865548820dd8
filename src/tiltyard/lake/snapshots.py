"""Snapshots of a lake: named, immutable sets of versions over tables, to read, compare and restore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.lake.display import render_table
from tiltyard.lake.publication import ChangedTable, open_publication
from tiltyard.lake.tables.arguments import check_moment
from tiltyard.lake.tables.table import SnapshotTable, Table
from tiltyard.model.text.typed_ids import format_id
from tiltyard.publishing import Isolation

if TYPE_CHECKING:
    from tiltyard.lake.session import LakeSession
    from tiltyard.lake.tables.changes import Changes


@dataclass(frozen=True, slots=True)
class SnapshotDiff:
    """What another snapshot has that this one lacks (`added`), and the reverse; and the changes of tables of both."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, Changes]

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object, str, object]] = [(name, "", "table added", "") for name in self.added]
        rows += [(name, "", "table removed", "") for name in self.removed]
        for name, changes in self.changed.items():
            counts = changes.counts().items()
            rows += [(name, version, kind, number) for version, kinds in counts for kind, number in kinds.items()]
        return render_table(("table", "version", "change", "rows"), rows)


class Snapshot:
    """A named set of versions: `tables` has the version of each table, by its present name."""

    def __init__(self, lake: LakeSession, facts: Mapping[str, Any]) -> None:
        self._lake = lake
        self._paths = {format_id(tuple(table["id"])): tuple(table["id"]) for table in facts["tables"]}
        self.name: str = facts["name"]
        versions = (int(table["version"]) for table in facts["tables"])
        self.tables: Mapping[str, int] = dict(zip(self._paths, versions, strict=True))
        self.created_at = datetime.fromtimestamp(facts["created_at_millis"] / 1000, UTC)
        self.created_by: str = facts["created_by"]

    def table(self, name: str) -> SnapshotTable:
        """Return a table as the snapshot has it. Raises InvalidInputError for a table that is not in it."""
        if name not in self.tables:
            raise InvalidInputError(
                f"The snapshot '{self.name}' has no table '{name}'; it has {', '.join(self.tables)}."
            )
        return SnapshotTable(self._lake, self._paths[name], self.tables[name], self.name)

    def diff(self, later: Snapshot) -> SnapshotDiff:
        """Compare with a later snapshot. Raises InvalidInputError (a table is older there), and as `Table.changes`."""
        both = [name for name in self.tables if name in later.tables]
        if older := [name for name in both if later.tables[name] < self.tables[name]]:
            raise InvalidInputError(
                f"'{later.name}' has an older version of {older[0]} than '{self.name}': compare the other way round."
            )
        return SnapshotDiff(
            tuple(name for name in later.tables if name not in self.tables),
            tuple(name for name in self.tables if name not in later.tables),
            {name: later.table(name).changes(self.tables[name]) for name in both},
        )

    def restore(self) -> dict[str, int]:
        """Make all tables again what the snapshot has, in one commit over all of them; return their new versions.

        A table that is still at its version stays as it is, and must not be changed meanwhile either. Raises
        PublishConflictError (others changed one of the tables meanwhile), TableNotFoundError (one was dropped).
        """
        with open_publication(self._lake.catalog, Isolation.SERIALIZABLE, ()) as catalog:
            block = self._lake.within(catalog)
            for name, version in self.tables.items():
                table = ChangedTable(block, self._paths[name])
                if table.version != version:
                    table.dataset(version=version).restore()  # type: ignore[no-untyped-call]  # pylance's
        return {name: Table(self._lake, path).version for name, path in self._paths.items()}

    def drop(self) -> None:
        """Drop the snapshot; its versions are kept no longer than others. Raises TableTagNotFoundError."""
        self._lake.calls.call("DropSnapshot", name=self.name)

    def __repr__(self) -> str:
        return f"<snapshot {self.name} of {self._lake.location}: {len(self.tables)} tables>"

    def _repr_html_(self) -> str:
        return render_table(("table", "version"), list(self.tables.items()))


@dataclass(frozen=True, slots=True)
class LakeMoment:
    """The tables of a lake as they were at a moment, each by its version that was the newest then."""

    open_table: Callable[[str], Table]
    moment: datetime

    def table(self, name: str) -> SnapshotTable:
        """Return a table as it was. Raises TableVersionNotFoundError (none is as old), TableNotFoundError."""
        return self.open_table(name).at(self.moment)


def create_snapshot(
    lake: LakeSession,
    name: str,
    paths: Sequence[tuple[str, ...]],
    moment: datetime | None = None,
    versions: Sequence[int] | None = None,
) -> Snapshot:
    """Create a snapshot: of the newest versions, of those of a moment, or of some versions, one a table.

    Raises as `Lake.snapshot` does.
    """
    if moment is not None:
        check_moment(moment, "at")
    request: dict[str, Any] = {
        "tables": [list(path) for path in paths],
        "at_millis": None if moment is None else int(moment.timestamp() * 1000),
        "versions": None if versions is None else list(versions),
    }
    response = lake.calls.call("CreateSnapshot", name=name, **request)
    return Snapshot(lake, response["snapshot"])


def find_snapshot(lake: LakeSession, name: str) -> Snapshot:
    """Return a snapshot. Raises TableTagNotFoundError."""
    return Snapshot(lake, lake.calls.call("DescribeSnapshot", name=name)["snapshot"])


def list_snapshots(lake: LakeSession) -> list[Snapshot]:
    """Return all snapshots that the caller sees, by name."""
    pages = lake.calls.pages("ListSnapshots")
    return [Snapshot(lake, facts) for page in pages for facts in page["snapshots"]]
