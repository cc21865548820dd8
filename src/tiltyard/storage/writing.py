"""Data files first, durable, then one commit: the only way in which a table changes here.

Lance leaves it to the operating system when files reach a disk; rows that are acknowledged have to be there. It deletes
the files of a write that fails by itself; those of a write whose commit fails are deleted here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import lance
import pyarrow as pa
from lance.fragment import write_fragments
from lance_namespace.errors import ConcurrentModificationError, TableAlreadyExistsError

from tiltyard.runtime.failpoints import Point, reach
from tiltyard.storage.errors import lance_errors, may_have_committed
from tiltyard.storage.manifest_format import column_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lance.fragment import FragmentMetadata

    from tiltyard.storage.commit_route import Road
    from tiltyard.storage.files import Files
    from tiltyard.storage.storage import Storage

Rows = Any  # a table or a reader of record batches
_MOST_REBASES = 50


def write_rows(storage: Storage, rows: Rows, dataset: lance.LanceDataset) -> list[FragmentMetadata]:
    """Write rows for a later append to a table, durably, without committing them.

    Raises what Lance raises, ServiceUnavailableError.
    """
    with _writing_back(storage, dataset.uri, rows):
        written: list[FragmentMetadata] = write_fragments(rows, dataset, mode="append")
    _sync(storage, dataset.uri, written)
    return written


def write_table(storage: Storage, rows: Rows, dataset: lance.LanceDataset) -> lance.Transaction:
    """Write rows that shall replace all rows and the schema of a table. Raises as `write_rows` does."""
    with _writing_back(storage, dataset.uri, rows):
        written: lance.Transaction = write_fragments(rows, dataset, mode="overwrite", return_transaction=True)
    _sync(storage, dataset.uri, fragments_of(written))
    return written


def write_first(storage: Storage, location: str, rows: Rows, options: Mapping[str, Any]) -> lance.Transaction:
    """Write the rows of a table's first version, to be published with `publish_first`.

    `options` are further arguments of Lance's writer. Raises TableAlreadyExistsError if there is a version already,
    else as `write_rows` does.
    """
    with lance_errors(location), _writing_back(storage, location, rows):
        written: lance.Transaction = write_fragments(
            rows,
            location,
            mode="create",
            return_transaction=True,
            storage_options=storage.options(location),
            session=storage.datasets.session,
            **options,
        )
    _sync(storage, location, fragments_of(written), (location, location.rpartition("/")[0]))
    return written


def _writing_back(storage: Storage, base: str, rows: Rows) -> AbstractContextManager[None]:
    """For rows that come one after the other: a table is small, and written at once."""
    return nullcontext() if isinstance(rows, pa.Table) else storage.writing_back(f"{base}/data")


def _sync(storage: Storage, base: str, fragments: Iterable[FragmentMetadata], new: Sequence[str] = ()) -> None:
    """Have written rows survive a loss of power, and folders that are `new`; the rows are deleted if that cannot be."""
    files = [f"{base}/data/{file.path}" for fragment in fragments for file in fragment.files]
    if not files:
        return
    try:
        storage.sync([*files, f"{base}/data", *new])
    except BaseException:
        storage.delete_files(files)
        raise


def publish_first(
    storage: Storage,
    location: str,
    transaction: lance.Transaction,
    road: Road | None = None,
    stable_row_ids: bool = False,
) -> None:
    """Make written rows the first version of a table: of several writers exactly one succeeds.

    Lance's own creation is not exclusive: who finds the first version of another while committing overwrites it. So
    the manifest is made in a folder of its own, and moved to its place only if none is there; on a road, the catalog
    decides who was first. Raises TableAlreadyExistsError.
    """
    files = storage.files(location)
    staging = f"{location}/_creating-{uuid4().hex}"
    with lance_errors(location):
        try:
            lance.LanceDataset.commit(
                staging,
                transaction,
                storage_options=storage.options(location),
                enable_v2_manifest_paths=True,
                enable_stable_row_ids=stable_row_ids,
            )
            for name in files.names(f"{staging}/_transactions"):
                files.write_new(f"{location}/_transactions/{name}", files.read(f"{staging}/_transactions/{name}"))
            manifest = next(name for name in files.names(f"{staging}/_versions") if name.endswith(".manifest"))
            content = files.read(f"{staging}/_versions/{manifest}")
            reach(Point.BEFORE_RECORD)
            if road is not None:
                _commit_first(files, road, f"{location}/_versions/{manifest}-{uuid4()}", content)
            elif not files.write_new(f"{location}/_versions/{manifest}", content):
                raise TableAlreadyExistsError("There is a table at this location already.")
            reach(Point.AFTER_FINALIZE)
        finally:
            files.delete_folder(staging)


def _commit_first(files: Files, road: Road, staged: str, content: bytes) -> None:
    files.write_new(staged, content)
    try:
        road.client.create_table_version(
            {"id": list(road.table_id), "version": 1, "manifest_path": staged, "manifest_size": len(content)}
        )
    except ConcurrentModificationError as error:
        files.delete([staged])
        raise TableAlreadyExistsError("There is a table at this location already.") from error


def fragments_of(transaction: lance.Transaction) -> list[FragmentMetadata]:
    """The fragments that a transaction of `write_table` or `write_first` brings."""
    return list(transaction.operation.fragments)  # type: ignore[attr-defined]  # those write nothing but Overwrite


def count_rows(fragments: Iterable[FragmentMetadata]) -> int:
    """How many rows were written."""
    return sum(fragment.physical_rows for fragment in fragments)


def discard(storage: Storage, base: str, fragments: Iterable[FragmentMetadata]) -> None:
    """Delete files that no version will ever have; `base` is the table's location, or its branch's folder."""
    paths = [f"{base}/data/{file.path}" for fragment in fragments for file in fragment.files]
    storage.delete_files(paths)


def discard_failed(storage: Storage, base: str, fragments: Iterable[FragmentMetadata], error: BaseException) -> None:
    """Delete the files of a commit that failed; those of one that may have come to be are left to `gc`."""
    withdrawn = isinstance(error, OvertakenError) and error.withdrawn
    if not withdrawn and not may_have_committed(error):
        discard(storage, base, fragments)


def has_schema(dataset: lance.LanceDataset, schema: pa.Schema) -> bool:
    """Whether fragments written for a new table of this schema can join a table: the ids of the fields agree, too."""
    return bool(dataset.lance_schema == lance.schema.LanceSchema.from_pyarrow(schema))


class OvertakenError(ConcurrentModificationError):
    """Columns that written rows have are gone: what was dropped, or has another type now, cannot be read from them.

    `withdrawn` rows were in a version that is not the latest.
    """

    def __init__(self, *, withdrawn: bool = False) -> None:
        super().__init__("Another request changed this table's columns meanwhile: send the rows again.")
        self.withdrawn = withdrawn


def commit_append(
    dataset: lance.LanceDataset,
    fragments: Sequence[FragmentMetadata],
    read_version: int,
    seconds: float,
    properties: Mapping[str, str] | None = None,
    road: Road | None = None,
) -> lance.LanceDataset:
    """Add fragments to a table in one version, and return that. Appends of others are no conflict.

    `dataset` is a plain handle, and so is the one returned: on a road, only the commit itself is told to the catalog.
    `read_version` is what the fragments were written against. Raises what Lance raises; OvertakenError where Lance
    itself would give the rows nulls, for a column that got another type after they were written. Off the road that is
    seen once it is done: the rows are withdrawn in another version. TableNotFoundError where the road tells that for
    sure nothing was recorded.
    """
    operation = lance.LanceOperation.Append(list(fragments))
    transaction = lance.Transaction(read_version, operation, transaction_properties=dict(properties or {}))
    written = {column for fragment in fragments for file in fragment.files for column in file.fields}
    overtaken: list[int] = []

    def check(version: int, manifest: Callable[[], bytes]) -> None:
        if version > read_version + 1 and not written <= column_ids(manifest()):
            overtaken.append(version)
            raise OvertakenError

    if road:
        road.checks.append(check)
    reach(Point.BEFORE_RECORD)
    try:
        committed = lance.LanceDataset.commit(
            dataset,
            transaction,
            max_retries=_MOST_REBASES,
            commit_timeout=timedelta(seconds=max(seconds, 1)),
            namespace_client=road.client if road else None,
            table_id=list(road.table_id) if road else None,
            namespace_client_managed_versioning=road is not None,
        )
    except Exception as error:
        if overtaken:
            raise OvertakenError from error
        if road and road.refusals:
            raise road.refusals[0] from error
        raise
    reach(Point.AFTER_FINALIZE)
    changed = road is None and committed.version > read_version + 1
    if changed and not written <= set(_column_ids(committed.lance_schema.fields())):
        _withdraw(committed, fragments)
        raise OvertakenError(withdrawn=True)
    return committed


def _column_ids(fields: Iterable[Any]) -> Iterator[int]:
    """The ids of Lance's fields, and of all inside them."""
    for field in fields:
        yield field.id()
        yield from _column_ids(field.children())


def _withdraw(committed: lance.LanceDataset, fragments: Iterable[FragmentMetadata]) -> None:
    """Take fragments out of a table again; their files stay, for the version that has them."""
    files = {file.path for fragment in fragments for file in fragment.files}
    there = [one.metadata for one in committed.get_fragments()]
    gone = [one.id for one in there if any(file.path in files for file in one.files)]
    operation = lance.LanceOperation.Delete([], gone, "false")
    lance.LanceDataset.commit(committed, operation, read_version=committed.version, max_retries=_MOST_REBASES)


def commit_overwrite(
    dataset: lance.LanceDataset, transaction: lance.Transaction, properties: Mapping[str, str] | None = None
) -> lance.LanceDataset:
    """Replace a table's rows and schema, whatever it has by now. Raises what Lance raises."""
    renewed = lance.Transaction(dataset.version, transaction.operation, transaction_properties=dict(properties or {}))
    reach(Point.BEFORE_RECORD)
    committed = lance.LanceDataset.commit(dataset, renewed)
    reach(Point.AFTER_FINALIZE)
    return committed
