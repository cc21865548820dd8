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
from tiltyard.model.columns.lineage import sql_inputs
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.files import LocalFiles
from tiltyard.store.repository import display_path
from tiltyard.tables.erasure.byte_search import MAX_SEARCHED_VALUES, digest_of, patterns_of, search_folder
from tiltyard.tables.erasure.old_versions import unreferenced_files
from tiltyard.tables.erasure.parked_rows import erase_parked_rows
from tiltyard.tables.erasure.scope import ScopeKind, count_stored, name_of, sources_of
from tiltyard.tables.upkeep.references import kind_of, open_branches
from tiltyard.tables.versions.records import stored_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    "Backups: the catalog does not know which there are, nor when they expire. Those taken before have the rows until "
    "`tiltyard backup prune` removes them."
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
        self._numbers: Mapping[str, int] = {}

    def examine(self, running: Job) -> None:
        """Read the rows of all versions that remain, search all files. Raises JobCanceledError, and Lance's errors."""
        patterns, told = self._patterns(running), [0.0]
        for table in self.scope.tables:
            if self.scope.kinds[table.id] is ScopeKind.OWN:
                self._numbers = self._condition_columns(table)
        for table in self.scope.tables:
            name = name_of(self._ctx, table.id)
            if str(table.id) not in self._plan.tables:
                self.unresolved.append(f"{name} was cloned meanwhile: erase again.")
            seen = self.tables[str(table.id)] = TableReport()
            self._read_versions(running, table, name, seen)
            self._look_for_leftovers(table, name, seen)
            self._look_at_parked_rows(table, name)
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
        self.unresolved += [
            f"{name} was made from these tables, as lineage has it: look at it by hand." for name in self.scope.derived
        ]

    def _condition_columns(self, table: TableRecord) -> Mapping[str, int]:
        """Return the columns that the condition reads, each with the number that it has in all versions and clones."""
        latest = open_branches(self._ctx, table.location).get(MAIN)
        numbers = {} if latest is None else _numbers_of(latest)
        return {each.column: numbers[each.column] for each in sql_inputs(self._plan.predicate, list(numbers))}

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
        self.searched = [digest_of(self._key, value) for value in rest]
        return [
            (each, digest) for value, digest in zip(rest, self.searched, strict=True) for each in patterns_of(value)
        ]

    def _values_of_others(self, running: Job, values: list[str | int]) -> set[str | int]:
        """Return which values rows have that stay, in the latest version of any branch."""
        found = set[str | int]()
        for table in self.scope.tables if values else ():
            for dataset in open_branches(self._ctx, table.location).values():
                for name in (each for each in self._plan.values_of if each in dataset.schema.names):
                    running.progress(stage="search")
                    kind = dataset.schema.field(name).type
                    wanted = [each for each in values if isinstance(each, int) == pa.types.is_integer(kind)]
                    with lance_errors(dataset):
                        for batch in dataset.scanner(columns=[name]).to_batches():
                            column = batch[name]
                            mask = pc.is_in(column.cast(_wide(kind)), value_set=pa.array(wanted, _wide(kind)))
                            found.update(column.filter(mask).unique().to_pylist())
        return found

    def _read_versions(self, running: Job, table: TableRecord, name: str, seen: TableReport) -> None:
        for branch, dataset in open_branches(self._ctx, table.location).items():
            for version in sorted(stored_versions(self._ctx, table, branch)):
                running.progress(stage="versions")
                try:
                    with lance_errors(dataset):
                        checked_out = dataset.checkout_version((branch.lance_name, version))
                        seen.rows_left += count_stored(checked_out, self._plan.predicate, None)
                    if self.scope.kinds[table.id] is not ScopeKind.DERIVED:
                        self._compare_columns(name, branch, checked_out)
                except (InvalidInputError, TableColumnNotFoundError) as error:
                    self.unresolved.append(f"{name}: the condition cannot be computed on version {version}: {error}")
                seen.versions_read += 1
        if seen.rows_left:
            self.unresolved.append(
                f"{name} has rows that match, in versions that came since or that were kept: erase again."
            )

    def _compare_columns(self, name: str, branch: Branch, version: lance.LanceDataset) -> None:
        """Note a column of the condition that is another one in a version: it has the name, not the rows' values."""
        for column, number in _numbers_of(version).items():
            if self._numbers.get(column, number) != number:
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

    def _look_at_parked_rows(self, table: TableRecord, name: str) -> None:
        schema = open_branches(self._ctx, table.location)[MAIN].schema
        left, unsettled = erase_parked_rows(self._ctx, table, schema, self._plan.predicate)
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


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of a column are compared."""
    if pa.types.is_integer(kind):
        return pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()
    return pa.large_string()


def make_report(
    ctx: Context, erasure: Erasure, plan: Plan, examination: Examination, ended_at: int
) -> tuple[str, str, str]:
    """Return the outcome, the report (JSON) and its signature."""
    outcome = INCOMPLETE if examination.unresolved else COMPLETE
    [table] = [table for table in examination.scope.tables if table.id == erasure.table_id]
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
        "to_check_by_hand": [BACKUPS, CATALOG, OUTSIDE, *([DISKS] if ctx.settings.disk_cache_bytes else []), *sources],
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


def _numbers_of(dataset: lance.LanceDataset) -> dict[str, int]:
    return {field.name(): field.id() for field in dataset.lance_schema.fields()}
