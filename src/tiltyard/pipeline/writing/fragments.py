"""Write, read and delete Lance files of fragments that no version names until the driver commits them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import lance
import pyarrow as pa
from lance.file import LanceFileReader
from lance.fragment import write_fragments
from lance.schema import LanceSchema

from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.arrow_compat import align_columns, decimal_columns
from tiltyard.pipeline.sources.filesystem import delete_files, delete_folders, file_exists
from tiltyard.pipeline.table_location import TableLocation

ROWS_PER_FILE = 1 << 20
BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class FragmentTarget:
    """How tasks write fragments: `schema` of all columns; `fresh` for a new table, or one that is overwritten.

    Fragments that are appended take the table's field ids and its file format (`storage_version`).
    """

    location: TableLocation
    schema: pa.Schema
    fresh: bool
    storage_version: str | None = None
    rows_per_file: int = ROWS_PER_FILE
    syncs_later: bool = False
    """Whether the caller makes what is written durable, by `sync_fragments`."""


def check_lance_types(schema: pa.Schema) -> None:
    """Raise RefusedError for a column that Lance cannot store: its own error would not name the column."""
    for field in schema:
        try:
            LanceSchema.from_pyarrow(pa.schema([field]))
        except ValueError as error:
            raise RefusedError(
                f"Column '{field.name}' is {field.type}, and Lance has no type for that: cast it, or leave it out."
            ) from error


def write_batches(
    target: FragmentTarget, batches: Iterable[pa.RecordBatch], dataset: lance.LanceDataset | None = None
) -> list[str]:
    """Write batches of the target's schema; return the fragments as JSON, [] for no rows. They are durable, unless the
    target says that they become that later.

    A version of the table that is open (`dataset`) saves looking up the newest one, unless its credentials expire.
    Raises what the batches raise.
    """
    failure: list[BaseException] = []

    def recorded() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except BaseException as error:
            failure.append(error)  # Lance reports only its text
            raise

    rows = recorded()
    first = next(rows, None)
    if first is None:
        return []

    decimals = decimal_columns(target.schema)

    def all_rows() -> Iterator[pa.RecordBatch]:
        yield align_columns(first, decimals)
        for batch in rows:
            yield align_columns(batch, decimals)

    reader = pa.RecordBatchReader.from_batches(target.schema, all_rows())
    arguments = target.location.write_arguments()
    if dataset is not None and not target.location.refresh_arguments:
        arguments["dataset_uri"] = dataset
    try:
        written = write_fragments(
            reader,
            schema=target.schema,
            mode="overwrite" if target.fresh else "append",
            max_rows_per_file=target.rows_per_file,
            data_storage_version=target.storage_version,
            **arguments,
        )
    except Exception as error:
        raise (failure[0] if failure else error) from error
    fragments = [json.dumps(fragment.to_json()) for fragment in written]
    if not target.syncs_later:
        sync_fragments(target, fragments)
    return fragments


def sync_fragments(target: FragmentTarget, fragments: Sequence[str]) -> None:
    """Check that the files of fragments that were just written are whole, and make them durable.

    Raises BrokenFileError, OSError.
    """
    files = data_files(fragments)
    blobs = map(_blob_folder, files) if has_blobs(target.schema) else ()
    target.location.make_durable([*files, *(f"{folder}/" for folder in blobs)])


def parse_fragments(fragments: Iterable[str]) -> list[lance.FragmentMetadata]:
    """Parse fragments from JSON."""
    return [lance.FragmentMetadata.from_json(fragment) for fragment in fragments]


def data_files(fragments: Iterable[str]) -> list[str]:
    """Return the data files of fragments, in order, relative to the table's folder."""
    return [f"data/{file['path']}" for fragment in fragments for file in json.loads(fragment)["files"]]


def delete_fragment_files(location: TableLocation, fragments: Iterable[str]) -> None:
    """Delete the files of fragments that will not be committed, with those of their blobs, in a folder beside each."""
    files = [f"{location.uri}/{file}" for file in data_files(fragments)]
    delete_files(files, location.options)
    delete_folders(list(map(_blob_folder, files)), location.options)


def _blob_folder(file: str) -> str:
    """Return where Lance puts the blobs of a data file that are too large for it."""
    return file.removesuffix(".lance")


def fragment_files_exist(location: TableLocation, fragments: Iterable[str]) -> bool:
    """Return whether all files of a run's checkpointed fragments still exist: only `gc` deletes them."""
    return all(file_exists(f"{location.uri}/{file}", location.options) for file in data_files(fragments))


def read_fragments(
    location: TableLocation, fragments: Sequence[str], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of fragments that are not committed."""
    return read_data_files(location, data_files(fragments), columns)


def read_data_files(
    location: TableLocation, files: Iterable[str], columns: Sequence[str], batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files below the table's folder (`data/…`); credentials that expire meanwhile are renewed."""
    for file in files:
        reader = LanceFileReader(
            f"{location.uri}/{file}", dict(location.options) or None, list(columns), **location.refresh_arguments
        )
        yield from reader.read_all(batch_size=batch_rows).to_batches()


@dataclass(frozen=True, slots=True)
class FragmentRows:
    """A task's input: rows of fragments of a version, by their ids, or of uncommitted fragments (`files`)."""

    location: TableLocation
    version: int = 0
    fragments: tuple[int, ...] = ()
    files: tuple[str, ...] = ()

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with these columns."""
        if self.files:
            yield from read_fragments(self.location, self.files, columns)
        else:
            yield from self.location.scan(self.version, self.fragments, columns=list(columns))
