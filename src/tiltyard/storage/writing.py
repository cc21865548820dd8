"""Write data files durably, then commit them: the only way in which the server changes a table.

Lance leaves it to the operating system when files reach a disk; acknowledged rows have to be there. Lance itself
deletes the files of a failed write; the files of a write whose commit fails are deleted here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import lance
import pyarrow as pa
from lance.fragment import write_fragments
from lance_namespace.errors import ConcurrentModificationError, TableAlreadyExistsError

from tiltyard.change_feed.table_history import ids_of_field
from tiltyard.runtime.cache import lasting_facts
from tiltyard.runtime.durability import WrittenFile
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.pool import run_together
from tiltyard.storage.errors import is_conflict, lance_errors, may_have_committed
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifests.manifest_format import column_ids
from tiltyard.storage.manifests.next_manifest import make_append, make_first_manifest, make_next_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lance.fragment import FragmentMetadata

    from tiltyard.runtime.pool import Started
    from tiltyard.storage.commit_route import Check, CommitRoute
    from tiltyard.storage.files import Files
    from tiltyard.storage.manifests.next_manifest import NextManifest
    from tiltyard.storage.storage import Storage

Rows = Any  # a table or a reader of record batches
_MAX_REBASES = 50


def write_rows(storage: Storage, rows: Rows, dataset: lance.LanceDataset, base: str) -> list[FragmentMetadata]:
    """Write rows for a later append to a table, durably, without committing them.

    `base` is the table's location, or its branch's folder, which the `uri` of a dataset does not tell. Raises what
    Lance raises, ServiceUnavailableError.
    """
    with _writing_back(storage, base, rows):
        fragments: list[FragmentMetadata] = write_fragments(rows, dataset, mode="append")
    _make_durable(storage, base, fragments)
    return fragments


def write_overwrite(storage: Storage, rows: Rows, dataset: lance.LanceDataset, base: str) -> lance.Transaction:
    """Write rows that are to replace all rows and the schema of a table. Like `write_rows` in all else."""
    with _writing_back(storage, base, rows):
        transaction: lance.Transaction = write_fragments(rows, dataset, mode="overwrite", return_transaction=True)
    _make_durable(storage, base, fragments_of(transaction))
    return transaction


def write_first_version(storage: Storage, location: str, rows: Rows, options: Mapping[str, Any]) -> lance.Transaction:
    """Write the rows of a table's first version, to be committed with `commit_first_version`.

    `options` are additional arguments of Lance's writer. Raises TableAlreadyExistsError if there is a version already,
    else as `write_rows` does.
    """
    with lance_errors(location), _writing_back(storage, location, rows):
        transaction: lance.Transaction = write_fragments(
            rows,
            location,
            mode="create",
            return_transaction=True,
            storage_options=storage.options(location),
            session=storage.datasets.session,
            **options,
        )
    _make_durable(storage, location, fragments_of(transaction))
    return transaction


def _writing_back(storage: Storage, base: str, rows: Rows) -> AbstractContextManager[None]:
    """Start write-back during the write of a stream of rows; a table in memory is small, and written at once."""
    return nullcontext() if isinstance(rows, pa.Table) else storage.writing_back(f"{base}/data")


def _make_durable(storage: Storage, base: str, fragments: Iterable[FragmentMetadata]) -> None:
    """Make written fragments durable; delete their files if that fails. Raises IncompleteFileError for a broken one."""
    files = [
        WrittenFile(f"{base}/data/{file.path}", file.file_size_bytes or None)
        for fragment in fragments
        for file in fragment.files
    ]
    if not files:
        return
    locations = [file.location for file in files]
    try:
        blobs = [f"{folder}/" for folder in _blob_folders(locations) if is_local(folder) and Path(folder).is_dir()]
        storage.make_durable([*files, *blobs])
    except BaseException:
        _delete(storage, locations)
        raise


def make_files_durable(storage: Storage, base: str, names: Sequence[str]) -> None:
    """Make written data files of a table, or of its branch's folder `base`, durable. Raises as `make_durable`."""
    storage.make_durable([f"{base}/data/{name}" for name in names])


def discard_files(storage: Storage, base: str, names: Sequence[str]) -> None:
    """Delete data files that are in no version, with their blobs; missing ones are ignored."""
    _delete(storage, [f"{base}/data/{name}" for name in names])


def _blob_folders(files: Iterable[str]) -> list[str]:
    """Return where Lance puts the blobs of data files that are too large for these: a folder beside each."""
    return [file.removesuffix(".lance") for file in files]


def _delete(storage: Storage, files: Sequence[str]) -> None:
    """Delete data files, with their blobs."""
    storage.delete_files(files)
    for folder in _blob_folders(files):
        with lance_errors(folder):
            storage.files(folder).delete_folder(folder)


def commit_first_version(
    storage: Storage,
    location: str,
    transaction: lance.Transaction,
    commit_route: CommitRoute | None = None,
    stable_row_ids: bool = False,
    *,
    in_new_folder: bool = False,
) -> NextManifest:
    """Commit written rows as the first version of a table: of several writers exactly one succeeds. Return what was
    made of them.

    Lance's own creation is not exclusive: a commit that meets the first version of another one overwrites it. So
    the manifest is made here, and put in its place only if none is there; with a commit route, the catalog decides
    which writer was first. `in_new_folder` says that no table has the folder before this returns: then nobody can see a
    manifest whose transaction is still missing. Raises TableAlreadyExistsError.
    """
    with lance_errors(location):
        made = make_first_manifest(transaction, stable_row_ids=stable_row_ids)
        files, final = storage.files(location), f"{location}/_versions/{made.name}"
        transaction_file = f"{location}/_transactions/{made.transaction_name}"
        if commit_route is not None:
            staged = f"{final}-{uuid4()}"
            _put_all(files, {transaction_file: made.transaction, staged: made.content})
            reach(Point.BEFORE_RECORD)
            _commit_first(files, commit_route, staged, made.content)
        elif in_new_folder:
            _put_all(files, {transaction_file: made.transaction, final: made.content})
            return made
        else:
            files.write_if_not_exists(transaction_file, made.transaction)
            reach(Point.BEFORE_RECORD)
            if not files.write_if_not_exists(final, made.content):
                raise TableAlreadyExistsError("There is a table at this location already.")
        reach(Point.AFTER_FINALIZE)
    return made


def _put_all(files: Files, objects: Mapping[str, bytes]) -> None:
    """Write new files; objects at the same time."""
    run_together(lambda name: files.write_if_not_exists(name, objects[name]), objects, len(objects))


def _commit_first(files: Files, commit_route: CommitRoute, staged: str, content: bytes) -> None:
    entry = {"id": list(commit_route.table_id), "version": 1, "manifest_path": staged, "manifest_size": len(content)}
    try:
        commit_route.client.commit_content(entry, content)
    except ConcurrentModificationError as error:
        files.delete([staged])
        raise TableAlreadyExistsError("There is a table at this location already.") from error


def fragments_of(transaction: lance.Transaction) -> list[FragmentMetadata]:
    """Return the fragments of a transaction from `write_overwrite` or `write_first_version`."""
    return list(transaction.operation.fragments)  # type: ignore[attr-defined]  # both write an Overwrite


def count_rows(fragments: Iterable[FragmentMetadata]) -> int:
    """Count the rows of written fragments."""
    return sum(fragment.physical_rows for fragment in fragments)


def discard(storage: Storage, base: str, fragments: Iterable[FragmentMetadata]) -> None:
    """Delete the files of fragments that are in no version; `base` is the table's location, or its branch's folder."""
    _delete(storage, [f"{base}/data/{file.path}" for fragment in fragments for file in fragment.files])


def discard_after_error(
    storage: Storage, base: str, fragments: Iterable[FragmentMetadata], error: BaseException
) -> None:
    """Delete the files of a failed commit; those of one that may have succeeded are left to `gc`."""
    is_withdrawn = isinstance(error, ColumnsChangedError) and error.withdrawn
    if not is_withdrawn and not may_have_committed(error):
        discard(storage, base, fragments)


def discard_transaction(
    storage: Storage, base: str, transaction: lance.Transaction, dataset: lance.LanceDataset
) -> None:
    """Delete the files of an append, or a change of rows, that is in no version.

    `dataset` is of the version that it was made on.
    """
    operation: Any = transaction.operation
    if isinstance(operation, lance.LanceOperation.Append):
        discard(storage, base, operation.fragments)
        return
    changed, new = operation.updated_fragments, getattr(operation, "new_fragments", ())
    existing = {file.path for fragment in dataset.get_fragments() for file in fragment.data_files()}
    data = [file.path for fragment in (*changed, *new) for file in fragment.files if file.path not in existing]
    deletions = [(fragment.id, fragment.deletion_file) for fragment in changed if fragment.deletion_file]
    _delete(storage, [f"{base}/data/{path}" for path in data])
    storage.delete_files(
        [f"{base}/{file.path(id_)}" for id_, file in deletions if file.read_version == transaction.read_version]
    )


def has_schema(dataset: lance.LanceDataset, schema: pa.Schema) -> bool:
    """Whether a table's schema and field ids are those of a new table with `schema`, so that its fragments fit."""
    return bool(dataset.lance_schema == lance.schema.LanceSchema.from_pyarrow(schema))


def commit_made_here(
    storage: Storage,
    location: str,
    manifests: Mapping[int, bytes],
    transaction: lance.Transaction,
    commit_route: CommitRoute,
) -> UnopenedVersion | None:
    """Commit to the main branch on an object store by making the next manifest here; return the new version.

    `manifests` are those of versions by their numbers: from the one that the transaction was made on to the one that is
    the latest by the catalog. None if another commit has the next number or conflicts, or Lance has to make the
    manifest: nothing was committed then. Raises what the commit route raises.
    """
    version = max(manifests)
    earlier = {number: content for number, content in manifests.items() if number != version}
    reach(Point.BEFORE_RECORD)
    made = make_next_manifest(manifests[version], version, transaction, earlier)
    return None if made is None else _put_and_commit(storage, location, version + 1, made, {}, commit_route)


def write_and_commit_made_here(
    storage: Storage,
    location: str,
    manifest: bytes,
    version: int,
    groups: Sequence[pa.Table],
    properties: Mapping[str, str],
    commit_route: CommitRoute,
    is_in_storage: Started[bool] | None,
) -> tuple[UnopenedVersion, list[FragmentMetadata]] | None:
    """Append rows as `commit_made_here` does, and put their data files together with the manifest: a round trip less.

    `manifest` is that of `version`, the latest one; where it turns out that storage does not have it, and where
    `commit_made_here` returns None, nothing is left. Tables of several schemas become a fragment each.
    """
    reach(Point.BEFORE_RECORD)
    made = make_append(manifest, version, groups, properties)
    if made is None:
        return None
    data = {f"{location}/data/{name}": content for name, content in made.files.items()}
    try:
        committed = _put_and_commit(storage, location, version + 1, made.manifest, data, commit_route, is_in_storage)
    except BaseException as error:
        if error in commit_route.refusals:
            discard(storage, location, made.fragments)
        else:
            discard_after_error(storage, location, made.fragments, error)
        raise
    return None if committed is None else (committed, made.fragments)


def _put_and_commit(
    storage: Storage,
    location: str,
    version: int,
    made: NextManifest,
    data: Mapping[str, bytes],
    commit_route: CommitRoute,
    is_in_storage: Started[bool] | None = None,
) -> UnopenedVersion | None:
    """Put all objects of a version at once, and record it.

    None if that conflicts, or if the version before it is not in storage: the objects are deleted again.
    """
    files, staged = storage.files(location), f"{location}/_versions/{made.name}-{uuid4()}"
    objects = {**data, staged: made.content, f"{location}/_transactions/{made.transaction_name}": made.transaction}
    with lance_errors(location):
        _put_all(files, objects)
    entry = {"id": list(commit_route.table_id), "version": version, "manifest_path": staged}
    try:
        if is_in_storage is not None and not is_in_storage.result():
            raise ConcurrentModificationError("The folder of the table was restored.")
        commit_route.client.commit_content({**entry, "manifest_size": len(made.content)}, made.content)
    except ConcurrentModificationError:
        with lance_errors(location):
            files.delete(list(objects))
        return None
    reach(Point.AFTER_FINALIZE)
    lasting_facts.put(manifest_key(staged), made.content)
    return UnopenedVersion(storage, location, version, made)


def manifest_key(staged: str) -> tuple[str, str]:
    """Return the key of `lasting_facts` for the manifest that was staged by a name, which no other has."""
    return "committed manifest", staged.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class UnopenedVersion:
    """A version that was just committed. To open it takes a request, which the commit need not wait for."""

    storage: Storage
    location: str
    version: int
    _manifest: NextManifest

    def open(self) -> lance.LanceDataset:
        """Open the version. Raises ServiceUnavailableError, PermissionDeniedError."""
        location, storage = self.location, self.storage
        with lance_errors(location):
            return self._manifest.open(location, storage.options(location), storage.datasets.session, self.version)


class ColumnsChangedError(ConcurrentModificationError):
    """Columns of written rows were dropped or changed their type meanwhile, so the rows cannot be read any more.

    `withdrawn` rows were committed, and removed again in a later version.
    """

    def __init__(self, *, withdrawn: bool = False) -> None:
        super().__init__("Another request changed this table's columns meanwhile: send the rows again.")
        self.withdrawn = withdrawn


def append_transaction(
    fragments: Sequence[FragmentMetadata], read_version: int, properties: Mapping[str, str] | None = None
) -> lance.Transaction:
    """Return the transaction that appends fragments, which were written against `read_version`."""
    operation = lance.LanceOperation.Append(list(fragments))
    return lance.Transaction(read_version, operation, transaction_properties=dict(properties or {}))


def commit_append(
    dataset: lance.LanceDataset,
    fragments: Sequence[FragmentMetadata],
    read_version: int,
    seconds: float,
    properties: Mapping[str, str] | None = None,
    commit_route: CommitRoute | None = None,
) -> lance.LanceDataset:
    """Append fragments to a table in one version, and return it. Concurrent appends are no conflict.

    `dataset` does not use the commit route, nor does the returned one: only the commit itself goes through the catalog.
    `read_version` is the version that the fragments were written against. Raises what Lance raises; ColumnsChangedError
    where Lance itself would read nulls, for a column whose type changed after the rows were written: without a commit
    route this is checked after the commit, and the rows are withdrawn in another version. TableNotFoundError where the
    route knows for certain that nothing was recorded.
    """
    transaction = append_transaction(fragments, read_version, properties)
    field_ids = {field for fragment in fragments for file in fragment.files for field in file.fields}
    refused_versions: list[int] = []

    def check(version: int, manifest: Callable[[], bytes]) -> None:
        if version > read_version + 1 and not field_ids <= column_ids(manifest()):
            refused_versions.append(version)
            raise ColumnsChangedError

    try:
        timeout = timedelta(seconds=max(seconds, 1))
        committed = _commit(dataset, transaction, commit_route, check, max_retries=_MAX_REBASES, commit_timeout=timeout)
    except Exception as error:
        if refused_versions:
            raise ColumnsChangedError from error
        raise
    is_rebased = commit_route is None and committed.version > read_version + 1
    if is_rebased and not field_ids <= {
        number for column in committed.lance_schema.fields() for number in ids_of_field(column)
    }:
        _withdraw(committed, fragments)
        raise ColumnsChangedError(withdrawn=True)
    return committed


def _commit(
    dataset: lance.LanceDataset,
    change: lance.Transaction | lance.LanceOperation.BaseOperation,
    commit_route: CommitRoute | None = None,
    check: Check | None = None,
    **options: Any,
) -> lance.LanceDataset:
    """Let Lance commit, by the commit route if there is one, which calls `check` first; `options` are Lance's.

    Raises why the route has refused the commit, if that is certain, else what Lance raises.
    """
    if commit_route and check:
        commit_route.checks.append(check)
    reach(Point.BEFORE_RECORD)
    try:
        committed = lance.LanceDataset.commit(
            dataset,
            change,
            namespace_client=commit_route.client if commit_route else None,
            table_id=list(commit_route.table_id) if commit_route else None,
            namespace_client_managed_versioning=commit_route is not None,
            **options,
        )
    except Exception as error:
        if commit_route and commit_route.refusals:
            raise commit_route.refusals[0] from error
        raise
    reach(Point.AFTER_FINALIZE)
    return committed


def _withdraw(committed: lance.LanceDataset, fragments: Iterable[FragmentMetadata]) -> None:
    """Remove fragments from a table again; their files stay, for the version that has them."""
    files = {file.path for fragment in fragments for file in fragment.files}
    existing = [fragment.metadata for fragment in committed.get_fragments()]
    withdrawn_ids = [fragment.id for fragment in existing if any(file.path in files for file in fragment.files)]
    operation = lance.LanceOperation.Delete([], withdrawn_ids, "false")
    lance.LanceDataset.commit(committed, operation, read_version=committed.version, max_retries=_MAX_REBASES)


def commit_next(
    dataset: lance.LanceDataset,
    operation: lance.LanceOperation.BaseOperation,
    properties: Mapping[str, str],
    commit_route: CommitRoute | None,
) -> lance.LanceDataset:
    """Commit an operation as the version right after that of `dataset`, and return it.

    `dataset` does not use the commit route. Raises ConcurrentModificationError if another commit came first (nothing
    was committed), why the route refused it for good, else what Lance raises.
    """
    base = int(dataset.version)
    refused: list[int] = []

    def check(version: int, manifest: Callable[[], bytes]) -> None:
        if version != base + 1:
            refused.append(version)
            raise ConcurrentModificationError("Another commit came first.")

    transaction = lance.Transaction(base, operation, transaction_properties=dict(properties))
    try:
        return _commit(dataset, transaction, commit_route, check, max_retries=0)
    except Exception as error:
        if refused or any(is_conflict(each) for each in (error, error.__cause__) if each is not None):
            raise ConcurrentModificationError("Another commit to the table came first.") from error
        if commit_route is not None and commit_route.refusals:
            raise commit_route.refusals[0] from error
        raise


def commit_overwrite(
    dataset: lance.LanceDataset, transaction: lance.Transaction, properties: Mapping[str, str] | None = None
) -> lance.LanceDataset:
    """Replace a table's rows and schema, whatever its latest version is. Raises what Lance raises."""
    rebased = lance.Transaction(dataset.version, transaction.operation, transaction_properties=dict(properties or {}))
    return _commit(dataset, rebased)


def commit_new_columns(dataset: lance.LanceDataset, operation: lance.LanceOperation.Merge) -> int:
    """Add columns, whose files are durable, to exactly the version of a dataset; return the new version.

    Raises what Lance raises, for any commit that came first.
    """
    return int(_commit(dataset, operation, read_version=dataset.version, max_retries=0).version)
