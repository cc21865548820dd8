"""The report of an erasure: what was done, what was looked at since, and what could not be; signed by the catalog."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.events.signatures import sign
from tiltyard.model.branches import MAIN
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.files import LocalFiles
from tiltyard.store.repository import display_path
from tiltyard.tables.erasure.backups import find_backups
from tiltyard.tables.erasure.byte_search import MAX_SEARCHED_VALUES, digest_of, patterns_of, search_folder
from tiltyard.tables.erasure.conditions import columns_of, field_numbers, open_main
from tiltyard.tables.erasure.old_versions import unreferenced_files
from tiltyard.tables.erasure.parked_rows import erase_parked_rows
from tiltyard.tables.erasure.plan import branch_key
from tiltyard.tables.erasure.scope import ScopeKind, count_stored, name_of, sources_of
from tiltyard.tables.upkeep.references import kind_of, open_branches
from tiltyard.tables.versions.records import stored_versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import lance

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.jobs import Job
    from tiltyard.store import Erasure, TableRecord
    from tiltyard.tables.erasure.plan import Plan, TableFigures
    from tiltyard.tables.erasure.scope import Scope

FORMAT = 1
COMPLETE, INCOMPLETE = "complete", "incomplete"
_KEY, _DIGEST_KEY = "erasure reports", "erasure digests"
"""The names of the catalog's secrets that sign reports, and that digests of values are made with."""
_TELL_SECONDS = 1.0
"""Time between two reports of progress."""
_MAX_NAMED = 100
"""Files of one kind that a report names."""

BACKUPS = (
    "Backups that the catalog has no record of: taken by other means, by an earlier release, or at a target that "
    "has got none for `transaction_days`. Those taken before have the rows until they are removed."
)
CATALOG = (
    "The catalog's database and its own backups: the condition of an approval that was asked for is kept there until "
    "that expires. SQLite overwrites what is deleted; PostgreSQL does not, until it needs the place."
)
OUTSIDE = "What left the server: exports, results of queries, copies in other catalogs, caches of clients."

DISKS = "Copies of tables on the disks of other machines' servers: they go once those read a later version."


class TableReport(msgspec.Struct):
    """What remains of one table, and was looked at."""

    versions_read: int = 0
    rows_left: int = 0
    files_searched: dict[str, int] = {}
    bytes_searched: int = 0
    files_of_writers: int = 0


class Examination:
    """What was found of an erasure's tables after its work."""

    def __init__(self, ctx: Context, erasure: Erasure, plan: Plan, scope: Scope) -> None:
        """Examine nothing yet."""
        self._ctx, self._erasure, self._plan, self.scope = ctx, erasure, plan, scope
        self._key = ctx.store.shared_secret(_DIGEST_KEY)
        self.tables: dict[str, TableReport] = {}
        self.found: list[dict[str, str]] = []
        self.unresolved: list[str] = []
        self.searched: list[str] = []
        self.too_short = self.held_by_others = 0
        self._values: list[str | int] = []

    def examine(self, running: Job) -> None:
        """Read the rows of all versions that remain, search all files. Raises JobCanceledError, and Lance's errors."""
        patterns, told = self._patterns(running), [0.0]
        for table in self.scope.tables:
            name = name_of(self._ctx, table.id)
            if str(table.id) not in self._plan.tables:
                self.unresolved.append(f"{name} was cloned meanwhile: erase again.")
            seen = self.tables[str(table.id)] = TableReport()
            if (condition := self.scope.conditions.get(table.id)) is not None:
                self._read_versions(running, table, name, condition, seen)
                self._look_at_parked_rows(table, name, condition)
            else:
                self._look_at_view(table, name, seen)
            if self.scope.kinds[table.id] in (ScopeKind.DERIVED, ScopeKind.VIEW):
                self._search_rows(running, table, name)
            self._look_for_leftovers(table, name, seen)
            self._look_at_queue(table, name)

            def report(path: str, size: int, seen: TableReport = seen) -> None:
                seen.files_searched[kind_of(path)] = seen.files_searched.get(kind_of(path), 0) + 1
                seen.bytes_searched += size
                if time.monotonic() - told[0] > _TELL_SECONDS:
                    told[0] = time.monotonic()
                    running.progress(stage="search", bytes=seen.bytes_searched)

            for path, digest in search_folder(
                self._ctx.storage.files(table.location), table.location, patterns, report
            ):
                self.found.append({"table": name, "file": path, "value": digest})
        self._search_disk_cache(patterns)
        if self.found:
            self.unresolved.append(f"{len(self.found)} times a file has the bytes of a value: see `found`.")
        for removed in self.scope.dropped:
            name = display_path((*removed.namespace, removed.name))
            self.unresolved.append(f"{name} was dropped meanwhile, and has rows that match: erase again.")
        self.unresolved += self.scope.unsettled

    def _condition_columns(self, table: TableRecord, condition: str) -> Mapping[str, int]:
        """Return the columns that a condition reads, each with the number that it has in all versions and clones."""
        number = table.id
        while number in self.scope.clones and self.scope.kinds[number] is ScopeKind.CLONE:
            number = self.scope.clones[number]
        if self.scope.kinds[number] is not ScopeKind.OWN:
            return {}  # its job may overwrite it: its columns have other numbers then
        location = next(each.location for each in self.scope.tables if each.id == number)
        numbers = field_numbers(open_main(self._ctx, location))
        return {name: numbers[name] for name in columns_of(condition, numbers)}

    def _patterns(self, running: Job) -> list[tuple[bytes, str]]:
        """Return what is searched for: the values, but for those that are too short, or that other rows have, too."""
        values = dict.fromkeys(self._plan.values or ())
        for value in [each for each in values if not patterns_of(each)]:
            del values[value]
            self.too_short += 1
        shared = self._values_of_others(running, list(values))
        self.held_by_others = len(shared)
        rest = [value for value in values if value not in shared]
        if len(rest) > MAX_SEARCHED_VALUES:
            left = f"{len(rest) - MAX_SEARCHED_VALUES} of {len(rest)} values"
            self.unresolved.append(f"{left} were not searched for: erase fewer rows at a time.")
            rest = rest[:MAX_SEARCHED_VALUES]
        self._values = rest
        self.searched = [digest_of(self._key, value) for value in rest]
        return [
            (each, digest) for value, digest in zip(rest, self.searched, strict=True) for each in patterns_of(value)
        ]

    def _values_of_others(self, running: Job, values: list[str | int]) -> set[str | int]:
        """Return which values rows have that stay, in the latest version of any branch."""
        found = set[str | int]()
        copies = [each for each in self.scope.tables if self.scope.kinds[each.id] in (ScopeKind.OWN, ScopeKind.CLONE)]
        for table in copies if values else ():
            for dataset in open_branches(self._ctx, table.location).values():
                for name in (each for each in self._plan.values_of if each in dataset.schema.names):
                    running.progress(stage="search")
                    found |= _values_in(dataset, name, values)
        return found

    def _search_rows(self, running: Job, table: TableRecord, name: str) -> None:
        """Look for the values in the rows of a table that was made from others, in all columns that can have them."""
        for branch, dataset in open_branches(self._ctx, table.location).items() if self._values else ():
            for field in dataset.schema:
                if _wide(field.type) is None:
                    continue
                running.progress(stage="search")
                for value in sorted(_values_in(dataset, field.name, self._values), key=str):
                    where = f"column '{field.name}' of the branch '{branch.name}'"
                    self.found.append({"table": name, "file": where, "value": digest_of(self._key, value)})

    def _look_at_view(self, table: TableRecord, name: str, seen: TableReport) -> None:
        """Note what is left of a view from before it was computed anew."""
        if failure := self._plan.failures.get(str(table.id)):
            self.unresolved.append(
                f"{name} could not be computed anew, and has rows that were made of these: {failure} Refresh it in "
                "full, and erase again."
            )
            return
        first = self._plan.rewritten.get(branch_key(table, MAIN), 0)
        for branch in open_branches(self._ctx, table.location):
            versions = stored_versions(self._ctx, table, branch)
            seen.versions_read += len(versions)
            if not branch.is_main:
                self.unresolved.append(
                    f"{name}: the branch '{branch.name}' was made from the view as it was before: delete the branch, "
                    "or erase from the view by a condition of its own."
                )
            elif early := [each for each in sorted(versions) if each < first]:
                self.unresolved.append(
                    f"{name} has the version {early[0]} from before it was computed anew: erase again."
                )

    def _read_versions(self, running: Job, table: TableRecord, name: str, condition: str, seen: TableReport) -> None:
        numbers = self._condition_columns(table, condition)
        for branch, dataset in open_branches(self._ctx, table.location).items():
            for version in sorted(stored_versions(self._ctx, table, branch)):
                running.progress(stage="versions")
                try:
                    with lance_errors(dataset):
                        checked_out = dataset.checkout_version((branch.lance_name, version))
                        seen.rows_left += count_stored(checked_out, condition, None)
                    self._compare_columns(name, branch, checked_out, numbers)
                except (InvalidInputError, TableColumnNotFoundError) as error:
                    self.unresolved.append(f"{name}: the condition cannot be computed on version {version}: {error}")
                seen.versions_read += 1
        if seen.rows_left:
            self.unresolved.append(
                f"{name} has rows that match, in versions that came since or that were kept: erase again."
            )

    def _compare_columns(
        self, name: str, branch: Branch, version: lance.LanceDataset, numbers: Mapping[str, int]
    ) -> None:
        """Note a column of the condition that is another one in a version: it has the name, not the rows' values."""
        for column, number in field_numbers(version).items():
            if numbers.get(column, number) != number:
                self.unresolved.append(
                    f"{name}: '{column}' on the branch '{branch.name}' (version {version.version}) is not the column "
                    "that the condition is about, which had another name or type there: look at it by hand."
                )

    def _search_disk_cache(self, patterns: list[tuple[bytes, str]]) -> None:
        """Search the copies of tables that the processes of this machine have on its disk."""
        folder = self._ctx.settings.disk_cache_folder
        if not folder:
            return
        self._ctx.storage.datasets.disk_cache.wait()
        for path, digest in search_folder(LocalFiles(), str(folder), patterns, lambda path, size: None):
            self.found.append({"table": "copies on this machine's disk", "file": path, "value": digest})

    def _look_at_queue(self, table: TableRecord, name: str) -> None:
        if number := self._ctx.store.count_older_appends(table.id, self._erasure.requested_at):
            self.unresolved.append(
                f"{name} has {number} appends from before in its queue, which servers that died have left there: they "
                "go an hour after they expire. Erase again then."
            )

    def _look_at_parked_rows(self, table: TableRecord, name: str, condition: str) -> None:
        schema = open_branches(self._ctx, table.location)[MAIN].schema
        left, unsettled = erase_parked_rows(self._ctx, table, schema, condition)
        if left:
            self.unresolved.append(f"{name} got {left} parked rows that match meanwhile: erase again.")
        if unsettled:
            files = ", ".join(unsettled[:_MAX_NAMED])
            self.unresolved.append(f"{name} has parked rows on which the condition cannot be computed: {files}.")

    def _look_for_leftovers(self, table: TableRecord, name: str, seen: TableReport) -> None:
        """Name files of no version that are older than the erasure, and count those that writers have written since."""
        files = unreferenced_files(self._ctx, table)
        old = sorted(path for path, modified in files if modified < self._erasure.requested_at)
        seen.files_of_writers = len(files) - len(old)
        if old:
            named = ", ".join(old[:_MAX_NAMED])
            self.unresolved.append(
                f"{name} has {len(old)} files of no version that unfinished writes may have left, and that are too "
                f"young to be removed (gc_safety_days): {named}. Erase again once `tiltyard gc` has removed them."
            )


def _values_in(dataset: lance.LanceDataset, name: str, values: Iterable[str | int]) -> set[str | int]:
    """Return which values a column of a version has, of texts or whole numbers. Raises Lance's errors as ours."""
    kind = dataset.schema.field(name).type
    wide, found = _wide(kind), set[str | int]()
    wanted = [each for each in values if isinstance(each, int) == pa.types.is_integer(kind)]
    if wide == pa.uint64():
        wanted = [each for each in wanted if isinstance(each, int) and each >= 0]
    with lance_errors(dataset):
        for batch in dataset.scanner(columns={"value": quote_path((name,))}).to_batches() if wanted else ():
            column = batch["value"]
            mask = pc.is_in(column.cast(wide), value_set=pa.array(wanted, wide))
            found.update(column.filter(mask).unique().to_pylist())
    return found


def _wide(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which values of a column are compared; None for one that is of texts or whole numbers not."""
    if pa.types.is_integer(kind):
        return pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()
    return pa.large_string() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def make_report(
    ctx: Context, erasure: Erasure, plan: Plan, examination: Examination, ended_at: int
) -> tuple[str, str, str]:
    """Return the outcome, the report (JSON) and its signature."""
    outcome = INCOMPLETE if examination.unresolved else COMPLETE
    [table] = [table for table in examination.scope.tables if table.id == erasure.table_id]
    backups = find_backups(ctx, ended_at)
    sources = [f"{name}: this table was made from it, and it is not changed." for name in sources_of(ctx, table)]
    content = {
        "format": FORMAT,
        "erasure": erasure.id,
        "table": list(erasure.path),
        "reference": erasure.reference,
        "requested_by": erasure.requested_by,
        "requested_at_millis": erasure.requested_at,
        "ended_at_millis": ended_at,
        "outcome": outcome,
        "condition": digest_of(ctx.store.shared_secret(_DIGEST_KEY), plan.predicate),
        "tables": [_table_part(figures, examination.tables.get(key)) for key, figures in plan.tables.items()],
        "dropped_tables_ended": plan.dropped,
        "values": {
            "columns": plan.values_of,
            "searched": examination.searched,
            "too_short": examination.too_short,
            "held_by_other_rows": examination.held_by_others,
        },
        "found": examination.found,
        "unresolved": examination.unresolved,
        "backups": [msgspec.to_builtins(each) for each in backups],
        "to_check_by_hand": [
            *(each.describe() for each in backups),
            *(BACKUPS, CATALOG, OUTSIDE),
            *([DISKS] if ctx.settings.disk_cache_bytes else []),
            *sources,
        ],
    }
    text = msgspec.json.encode(content).decode()
    return outcome, text, sign_report(ctx, erasure.id, ended_at, text)


def _table_part(figures: TableFigures, seen: TableReport | None) -> dict[str, Any]:
    return {**msgspec.to_builtins(figures), **(msgspec.to_builtins(seen) if seen else {})}


def sign_report(ctx: Context, id_: str, ended_at: int, text: str) -> str:
    """Return the signature of a report, by a key that all servers of the catalog share and nobody else has."""
    return sign(ctx.store.shared_secret(_KEY), id_, ended_at // 1000, text.encode())


def is_signed(ctx: Context, erasure: Erasure) -> bool:
    """Return whether the report of an erasure is as it was signed."""
    if not erasure.signature or erasure.ended_at is None:
        return False
    expected = sign_report(ctx, erasure.id, erasure.ended_at, erasure.report)
    return hmac.compare_digest(expected, erasure.signature)
