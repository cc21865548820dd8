"""Training sets: made of a table or a query, opened, verified and dropped.

A set NAME is a table NAME with a row for each row of the set (its offset in the source's version, and its split), whose
schema's metadata has the manifest, and a snapshot NAME that keeps that table and the version of the source. The rows of
a query become a table NAME_rows first, which is the source then. The snapshot comes last: without it there is no set,
and what a killed process has left is used by the next one that makes the same set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.lake.display import render_table
from tiltyard.lake.errors import naming
from tiltyard.lake.runs import start_run
from tiltyard.lake.snapshots import Snapshot, create_snapshot, find_snapshot, list_snapshots
from tiltyard.lake.tables.table import SnapshotTable, Table
from tiltyard.lake.training.definition import Definition, query_tables
from tiltyard.lake.training.loader import Loader, LoaderOptions, open_loader
from tiltyard.lake.training.manifest import digested_facts, make_manifest, read_manifest, with_manifest
from tiltyard.lake.training.row_reader import RowReader, row_bytes
from tiltyard.lake.training.selection import check_not_empty, check_same, digest_files, identity_columns, select_rows
from tiltyard.model.columns.lineage import ReadColumns
from tiltyard.model.ids import check_ref
from tiltyard.model.lineage import JobLineage, LineageSource
from tiltyard.model.text.typed_ids import format_id
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.lineage import table_source
from tiltyard.pipeline.table_changes import declared_key
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.row_sources import StreamRows
from tiltyard.pipeline.writing.target_table import WriteMode, prepare_target
from tiltyard.pipeline.writing.tasks import WriteResult
from tiltyard.pipeline.writing.write_job import commit_rows, discarding, write_uncommitted

if TYPE_CHECKING:
    import lance

    from tiltyard.lake.session import LakeSession
    from tiltyard.lake.training.selection import Selection
    from tiltyard.pipeline.runs import LocalRun

JOB = "training_set"
"""The kind of job that lineage names."""
_QUERY, _PLACES = (
    "SQL of the server shows no plan of its queries",
    "a training set has places of rows, and no columns of theirs",
)
"""Why lineage does not know what the columns of a query's rows, and of a set, are made from."""
SCHEMA = pa.schema([pa.field("row", pa.uint64(), nullable=False), pa.field("split", pa.string(), nullable=False)])
_BATCH_ROWS = 1 << 16
_MAX_TRIES = 5
"""How often a query is run until no table that it reads has changed in between."""


class TrainingSet:
    """A frozen set of rows in splits. `manifest` says all about it, `splits` how many rows each split has."""

    def __init__(self, lake: LakeSession, snapshot: Snapshot, table: SnapshotTable, manifest: dict[str, Any]) -> None:
        self._lake = lake
        self._snapshot = snapshot
        self._table = table
        self.manifest: Mapping[str, Any] = manifest
        self.name = snapshot.name

    @property
    def splits(self) -> dict[str, int]:
        """Return how many rows each split has."""
        return dict(self.manifest["splits"])

    @property
    def digest(self) -> str:
        """Return the digest of the arguments, of the source's version, and of which row is in which split."""
        return str(self.manifest["digest"])

    @property
    def source(self) -> SnapshotTable:
        """Return the table that the rows are of, at the set's version. Raises TableNotFoundError if it was dropped."""
        others = [name for name in self._snapshot.tables if name != self._table.name]
        if not others:
            raise InvalidTableStateError(f"The snapshot of '{self.name}' has no source: the set is not whole.")
        return self._snapshot.table(others[0])

    def verify(self) -> str:
        """Choose the rows of the source's version again, and compare all with the manifest; return the digest.

        Raises InvalidTableStateError where something is not what it was, TableVersionNotFoundError.
        """
        definition = Definition.from_json(self.manifest["definition"])
        dataset = self._source_dataset()
        facts = digested_facts(definition, dataset)
        for name, computed in {**facts, "version": int(dataset.version)}.items():
            check_same(f"The {name}", self.manifest[name], computed)
        selection = select_rows(dataset, definition, self.manifest["units"], lambda _: None)
        check_same("The digest of the chosen rows", self.digest, selection.digest(facts))
        stored = self._table.dataset().to_table(columns=SCHEMA.names)
        names = np.array(list(definition.splits))
        is_same = np.array_equal(stored["row"].to_numpy(), selection.rows) and np.array_equal(
            stored["split"].to_numpy(zero_copy_only=False).astype(str), names[selection.splits]
        )
        if not is_same:
            raise InvalidTableStateError(
                f"The rows of the table {self._table.name} are not those that its manifest has."
            )
        return self.digest

    def loader(self, split: str = "train", **options: Unpack[LoaderOptions]) -> Loader:
        """Return the batches of a split, as an iterable: `LoaderOptions` are what it takes besides.

        Raises InvalidInputError, TableNotFoundError, TableVersionNotFoundError, InvalidTableStateError (another table
        has the name of the source), PermissionDeniedError.
        """
        return open_loader(self._reader(split), split, self.manifest, options)

    def to_arrow(self, split: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of a split, in the source's order. Raises as `loader` does."""
        batches = list(self.loader(split, columns=columns, format="arrow"))
        return pa.Table.from_batches(batches)

    def drop(self) -> None:
        """Drop the set: its snapshot, its table, and the table of a query's rows; versions are kept no longer.

        Raises TableTagNotFoundError.
        """
        tables = [self._table]
        if self.manifest["definition"]["query"] is not None:
            with suppress(TableNotFoundError, TableVersionNotFoundError, InvalidTableStateError):
                self._source_dataset()  # the query's rows, and no other table that has their name by now
                tables.append(self.source)
        self._snapshot.drop()
        for table in tables:
            with suppress(TableNotFoundError):
                Table(self._lake, table.path).drop()

    def _source_dataset(self) -> lance.LanceDataset:
        """Open the source's version. Raises InvalidTableStateError for another table that has its name by now."""
        source = self.source
        try:
            dataset = source.dataset()
        except TableVersionNotFoundError as error:
            raise TableVersionNotFoundError(
                f"Version {source.version} of {source.name}, which the training set '{self.name}' is of, is gone."
            ) from error
        check_same(f"The digest of the files of {source.name}", self.manifest["files"], digest_files(dataset))
        return dataset

    def _reader(self, split: str) -> RowReader:
        """Return what reads the rows of a split, in this process or another. Raises InvalidInputError."""
        if split not in self.splits:
            raise InvalidInputError(f"'{self.name}' has no split '{split}': it has {', '.join(self.splits)}.")
        self._source_dataset()
        names = list(self.splits)
        before = sum(self.splits[name] for name in names[: names.index(split)])
        source = self.source
        return RowReader(
            self._lake.catalog, self._table.path, self._table.version, source.path, source.version,
            before, self.splits[split],
        )  # fmt: skip

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.splits.items())
        return f"<training set {self.name} of {self._lake.location}: {counts}>"

    def _repr_html_(self) -> str:
        return render_table(("split", "rows"), list(self.splits.items()))


def create_training_set(
    lake: LakeSession,
    path: tuple[str, ...],
    source: Table | None,
    definition: Definition,
    *,
    version: int | None = None,
) -> TrainingSet:
    """Make a set, or return the one that has the name and the same arguments. Raises as `Lake.training_set` does."""
    name = check_ref(format_id(path), "training set")
    with suppress(TableTagNotFoundError):
        return _check_same_arguments(find_training_set(lake, name), definition, version)
    left = _find_left(lake, path, definition)
    if left is not None and version in (None, int(left["version"])):
        origin = _source_path(path, source)
        create_snapshot(lake, name, [path, origin], versions=[1, int(left["version"])])
        return find_training_set(lake, name)

    def work(run: LocalRun) -> Mapping[str, object]:
        with _rows_table(lake, run, path, source, definition) as (origin, sources):
            return _make(lake, run, path, origin, definition, version, sources)

    start_run(JOB, work).wait()
    return find_training_set(lake, name)


def find_training_set(lake: LakeSession, name: str) -> TrainingSet:
    """Return a set. Raises TableTagNotFoundError, InvalidInputError for a snapshot that is of no set."""
    try:
        snapshot = find_snapshot(lake, name)
    except TableTagNotFoundError as error:
        raise TableTagNotFoundError(
            f"There is no training set '{name}' that you may read: list the sets to see which there are."
        ) from error
    found = _open(lake, snapshot)
    if found is None:
        raise InvalidInputError(f"'{name}' is a snapshot, and no training set: lake.at('{name}') opens it.")
    return found


def list_training_sets(lake: LakeSession) -> list[TrainingSet]:
    """Return the sets whose tables the caller may read, by name."""
    found = []
    for snapshot in list_snapshots(lake):
        with suppress(PermissionDeniedError):
            opened = _open(lake, snapshot) if len(snapshot.tables) == 2 else None
            found += [] if opened is None else [opened]
    return found


def _open(lake: LakeSession, snapshot: Snapshot) -> TrainingSet | None:
    """Return the set of a snapshot; None for one that is of no set, or whose table was dropped."""
    for name in sorted(snapshot.tables, key=lambda name: name != snapshot.name):
        table = snapshot.table(name)
        with suppress(TableNotFoundError, TableVersionNotFoundError):
            manifest = read_manifest(table.dataset().schema)
            if manifest is not None and manifest["name"] == snapshot.name:
                return TrainingSet(lake, snapshot, table, manifest)
    return None


def _check_same_arguments(found: TrainingSet, asked: Definition, version: int | None) -> TrainingSet:
    """Return a set that has the arguments. Raises TableAlreadyExistsError, which says how it differs."""
    differs = Definition.from_json(found.manifest["definition"]).describe_difference(asked)
    if not differs and version not in (None, found.manifest["version"]):
        differs = f"it has version {found.manifest['version']}, not {version}"
    if differs:
        raise TableAlreadyExistsError(
            f"There is a training set '{found.name}' with other arguments: {differs}. Drop it, or use another name."
        )
    return found


def _find_left(lake: LakeSession, path: tuple[str, ...], definition: Definition) -> dict[str, Any] | None:
    """Return the manifest that a killed process has left without a snapshot, if it is of the same arguments.

    Raises TableAlreadyExistsError for any other table of the name.
    """
    table = Table(lake, path)
    if not table.exists() or not table.version:
        return None
    manifest = read_manifest(table.dataset().schema)
    if manifest is not None and Definition.from_json(manifest["definition"]) == definition:
        return manifest
    raise TableAlreadyExistsError(f"There is a table '{table.name}': a training set needs a name that is free.")


def _source_path(path: tuple[str, ...], source: Table | None) -> tuple[str, ...]:
    """Return the table that a set is of: of a query, the one that has its rows."""
    return (*path[:-1], f"{path[-1]}_rows") if source is None else source.path


@contextmanager
def _rows_table(
    lake: LakeSession, run: LocalRun, path: tuple[str, ...], source: Table | None, definition: Definition
) -> Iterator[tuple[tuple[str, ...], list[LineageSource]]]:
    """Yield the table that a set is of, and the tables that its query reads; it is dropped if the block fails."""
    origin = _source_path(path, source)
    if definition.query is None:
        yield origin, []
        return
    _check_free(lake, origin)
    reader, sources = _run_query(lake, definition.query)
    _write(lake, run, origin, reader, JobLineage(JOB, tuple(sources), definition.code, why_unknown=_QUERY), None)
    try:
        yield origin, sources
    except BaseException:
        if not Table(lake, path).exists():  # else the set lacks its snapshot alone, and the next call makes that
            Table(lake, origin).drop()
        raise


def _check_free(lake: LakeSession, path: tuple[str, ...]) -> None:
    table = Table(lake, path)
    if table.exists() and table.version:
        raise TableAlreadyExistsError(
            f"There is a table '{table.name}', which the query's rows would be: drop or rename it."
        )


def _run_query(lake: LakeSession, query: str) -> tuple[pa.RecordBatchReader, list[LineageSource]]:
    """Start a query; return its rows and the tables that it reads, with their versions.

    Raises ConcurrentModificationError where the tables do not stay the same for as long as the query takes to start.
    """
    tables = [catalog_client.table(lake.catalog, names) for names in query_tables(query)]
    for _ in range(_MAX_TRIES):
        before = [_newest(table) for table in tables]
        reader = lake.calls.query_sql(query)
        if before == [_newest(table) for table in tables]:
            return reader, before
    raise ConcurrentModificationError("Commits to the tables of the query do not pause: make the set again.")


def _newest(table: catalog_client.Table) -> LineageSource:
    """Return the newest version of a table as a source; without its number for whom a policy keeps it from."""
    try:
        return table_source(table, table.latest_version())
    except PermissionDeniedError:
        return LineageSource(str(table))


def _make(
    lake: LakeSession,
    run: LocalRun,
    path: tuple[str, ...],
    origin: tuple[str, ...],
    definition: Definition,
    version: int | None,
    sources: list[LineageSource],
) -> Mapping[str, object]:
    """Choose the rows, write the set's table, and pin both; return the figures of the run."""
    table = catalog_client.table(lake.catalog, origin)
    dataset = table.dataset(version)
    version = int(dataset.version)
    key = () if definition.by else declared_key(table, dataset)
    definition.check_columns(dataset.schema, key)
    units = identity_columns(dataset, definition.by, key)
    selection = select_rows(dataset, definition, units, lambda rows: run.progress(rows=rows))
    check_not_empty(selection.counts)
    source = table_source(table, version)
    manifest = make_manifest(
        format_id(path),
        definition,
        dataset,
        selection,
        units=list(units),
        source={"table": source.name, "version": version, "location": source.location},
        sources=[{"table": each.name, "version": each.version} for each in sources],
        row_bytes=row_bytes(dataset, definition.columns, selection.rows),
    )
    rows = pa.RecordBatchReader.from_batches(SCHEMA, _batches(selection, list(definition.splits)))
    _write(lake, run, path, rows, JobLineage(JOB, (source,), definition.code, why_unknown=_PLACES), manifest)
    name = format_id(path)
    try:
        create_snapshot(lake, name, [path, origin], versions=[1, version])
    except LanceNamespaceError:
        Table(lake, path).drop()
        raise
    return {"rows": manifest["rows"], **{f"rows_{split}": count for split, count in selection.counts.items()}}


def _batches(selection: Selection, names: list[str]) -> Iterator[pa.RecordBatch]:
    words = pa.array(names, pa.string())
    for start in range(0, len(selection.rows), _BATCH_ROWS):
        part = slice(start, start + _BATCH_ROWS)
        split = pa.DictionaryArray.from_arrays(pa.array(selection.splits[part]), words).cast(pa.string())
        yield pa.RecordBatch.from_arrays([pa.array(selection.rows[part]), split], schema=SCHEMA)


def _write(
    lake: LakeSession,
    run: LocalRun,
    path: tuple[str, ...],
    rows: pa.RecordBatchReader,
    lineage: JobLineage,
    manifest: Mapping[str, Any] | None,
) -> None:
    """Write a new table in one commit, with its lineage; `manifest` goes into its schema. Raises as `Table.ingest`."""
    read = ReadColumns(None, lineage.why_unknown)
    source = StreamRows(lineage.sources, rows, lambda: lake.spark, read)
    own = type(run)()  # of its own: a commit is made once in the life of a run
    own.canceled, own.figures = run.canceled, run.figures
    target = prepare_target(own, catalog_client.table(lake.catalog, path), WriteMode.CREATE, lineage)
    options, results = WriteOptions(mode=WriteMode.CREATE), list[WriteResult]()
    with discarding(own, target, results, can_resume=False), naming("query"):
        written = write_uncommitted(own, source, target, options, results)
    if manifest is not None:
        written = replace(written, schema=with_manifest(written.schema, manifest))
    with discarding(own, target, results, can_resume=False, is_committing=True):
        commit_rows(own, target, written, options, None)
