"""Discover a source: find its files, infer their common schema, and group their pieces into tasks of similar size."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import lance
import pyarrow as pa

from tiltyard.model.columns.blob_columns import check_no_blobs
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.csv_records import CsvDialect
from tiltyard.pipeline.sources.file_options import (
    SPARK_FORMATS,
    CsvOptions,
    FileOptions,
    check_csv_only,
    pick_options,
)
from tiltyard.pipeline.sources.filesystem import FileInfo, base_folder, list_files
from tiltyard.pipeline.sources.inspection import (
    HEAD_BYTES,
    RANGE_BYTES,
    CsvSampleTask,
    InspectedFile,
    InspectionTask,
    csv_reader,
    json_reader,
)
from tiltyard.pipeline.sources.partitions import HIVE, read_partitions
from tiltyard.pipeline.sources.readers import Format, Piece, SourceReader
from tiltyard.pipeline.sources.record_cuts import ScanTask, cut_at_records
from tiltyard.pipeline.sources.types import FileSchema, SchemaMode, merge_schemas
from tiltyard.pipeline.spark_tasks import call_task, group_for_tasks, run_tasks
from tiltyard.pipeline.task_errors import clean_message
from tiltyard.runtime.pool import run_together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import Run

TASK_BYTES = 256 << 20
LATER_FILE_BYTES = 128 << 10
"""Bytes of each text file after the first one from which types are inferred."""

MAX_FILES_IN_DRIVER = 512
"""Up to so many files are inspected in the driver, more of them in Spark tasks."""
MAX_RANGES_IN_DRIVER = 8
"""Up to so many ranges of CSV files are scanned for records in the driver, more of them in Spark tasks."""

_FILES_PER_TASK = 64
_INSPECTION_THREADS = 16
_IMAGES = ("bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp")
_FORMATS_BY_EXTENSION = {
    "parquet": Format.PARQUET, "arrow": Format.ARROW, "feather": Format.ARROW, "arrows": Format.ARROW,
    "csv": Format.CSV, "tsv": Format.CSV, "json": Format.JSON, "jsonl": Format.JSON, "ndjson": Format.JSON,
    **dict.fromkeys(_IMAGES, Format.IMAGES),
}  # fmt: skip
_IMAGE_METADATA = "metadata.jsonl"
_UNSUPPORTED_COMPRESSIONS = ("bz2", "zst", "xz", "zip", "lz4", "7z", "br", "snappy", "z")

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class SplittableTask(Protocol[R_co]):
    """A task over files, or over ranges of them, that can be split into tasks of `count` each."""

    def __len__(self) -> int: ...
    def __call__(self) -> Sequence[R_co]: ...
    def split(self, count: int) -> Sequence[Callable[[], Sequence[R_co]]]: ...


class Inspector(Protocol):
    """Runs a task in parts; returns the results in order."""

    def __call__(self, task: SplittableTask[R], /) -> list[R]: ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files of one format: how to read their rows, and the pieces that tasks read."""

    reader: SourceReader
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Return the approximate size in bytes."""
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options for reading a source: those of its `files`, and what its reader makes of the rows.

    `types` replace inferred ones (text formats), and files may differ in such columns; `columns` are those that are
    needed (empty: all). `storage` are Lance's options of the object store. With `is_whole` text files are not split.
    """

    path: str
    files: FileOptions = field(default_factory=FileOptions)
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    is_whole: bool = False

    @classmethod
    def of(cls, path: str, files: FileOptions, selection: ColumnSelection, storage: Mapping[str, str]) -> SourceOptions:
        """Return the options of a source of which a caller has chosen columns."""
        old_names = {new: old for old, new in (selection.renamed or {}).items()}
        types = {old_names.get(name, name): dtype for name, dtype in (selection.types or {}).items()}
        columns = (*selection.names, *(selection.renamed or {})) if selection.names else ()
        return cls(path, files, types, storage, columns)

    @property
    def format(self) -> Format | None:
        """Return the format that is named."""
        name = self.files.get("format")
        return Format(name) if name else None

    @property
    def mode(self) -> SchemaMode:
        """Return what is done about files that differ."""
        return SchemaMode(self.files.get("schema") or SchemaMode.UNION)

    @property
    def task_bytes(self) -> int:
        """Return how much of the source a task reads. Raises RefusedError."""
        if (size := self.files.get("task_mb")) is None:
            return TASK_BYTES
        if size < 1:
            raise RefusedError(f"--task-mb is {size}: it is at least 1.")
        return size << 20


def find_source(options: SourceOptions, inspect: Inspector | None = None) -> FileSource:
    """Inspect all files of a source.

    Raises RefusedError if there are none, if their format is not clear, for an option that is not of their format.
    """
    if options.format is Format.LANCE or (options.format is None and options.path.rstrip("/").endswith(".lance")):
        check_csv_only(options.files, options.path, Format.LANCE)
        return _lance_source(options.path.rstrip("/"), options.storage, options.columns)
    files = list_files(options.path, options.storage)
    format_ = options.format or _detect_format(options.path, files)
    if len(files) > 1 and not options.format:
        files = _files_of_format(format_, files)
    files = _files_of_split(files, options) if options.files.get("split") else files
    check_csv_only(options.files, files[0].path, format_)
    inspect = inspect or inspect_in_threads
    if format_ is Format.IMAGES:
        return _image_source(files, options, inspect)
    files = [file for file in files if file.size]
    if not files:
        raise RefusedError(f"All files at {options.path} are empty.")
    return _file_source(format_, files, options, inspect)


def inspect_in_threads(task: SplittableTask[R]) -> list[R]:
    """Inspect files in threads of this process."""
    return [result for results in run_together(call_task, task.split(1), _INSPECTION_THREADS) for result in results]


def spark_inspector(run: Run, spark: SparkSession | LazySession) -> Inspector:
    """Return an inspector that runs Spark tasks for many files, and for ranges of large ones."""

    def inspect(task: SplittableTask[R]) -> list[R]:
        is_scan = isinstance(task, ScanTask)  # which reads all of its bytes
        if len(task) <= (MAX_RANGES_IN_DRIVER if is_scan else MAX_FILES_IN_DRIVER):
            return inspect_in_threads(task)
        parts = task.split(1 if is_scan else _FILES_PER_TASK)
        results = run_tasks(spark, run, call_task, parts, name="inspect files")
        return [result for part in results for result in part]

    return inspect


def group_pieces(pieces: Sequence[Piece], slots: int, task_bytes: int = TASK_BYTES) -> list[tuple[Piece, ...]]:
    """Group neighbouring pieces into tasks of similar size: as many as fill all slots evenly."""
    return group_for_tasks(((piece, max(1, piece.size)) for piece in pieces), task_bytes, slots)


def _detect_format(path: str, files: Sequence[FileInfo]) -> Format:
    """Return the one format of the files by their names; IMAGES for images with their metadata files."""
    formats = {format_ for file in files if (format_ := _format_by_name(file)) is not None}
    if Format.IMAGES in formats and all(
        _is_image_metadata(file) or _format_by_name(file) in (Format.IMAGES, None) for file in files
    ):
        return Format.IMAGES
    if len(formats) != 1:
        names = ", ".join(sorted(formats)) or "no known format"
        known = ", ".join((*Format, *SPARK_FORMATS))
        raise RefusedError(f"The files at {path} are of {names}: name one with --format ({known}), or fewer files.")
    return formats.pop()


def _format_by_name(file: FileInfo) -> Format | None:
    name = file.path.rpartition("/")[2].lower()
    uncompressed = name.removesuffix(".gz")
    format_ = _FORMATS_BY_EXTENSION.get(uncompressed.rpartition(".")[2])
    return format_ if uncompressed == name or format_ in (Format.CSV, Format.JSON) else None


def _files_of_format(format_: Format, files: Sequence[FileInfo]) -> list[FileInfo]:
    """Return the files of a format, without other files in the folder (a data card, a licence).

    Raises RefusedError for a file of this format with an unsupported compression.
    """
    for file in files:
        name, _, extension = file.path.lower().rpartition(".")
        if extension in _UNSUPPORTED_COMPRESSIONS and _format_by_name(replace(file, path=name)) is format_:
            raise RefusedError(f"{file.path} is compressed as .{extension}, which is not read: unpack it, or use .gz.")
    return [file for file in files if _format_by_name(file) is format_ or _is_image_metadata(file)]


def _is_image_metadata(file: FileInfo) -> bool:
    return file.path.rpartition("/")[2] == _IMAGE_METADATA


def _files_of_split(files: Sequence[FileInfo], options: SourceOptions) -> list[FileInfo]:
    """Return the files of one split by their names: `train/…`, `train-00000-of-00002.parquet`, `data/train.csv`."""
    part = re.compile(rf"(^|[/_.-]){re.escape(options.files.get('split') or '')}([/_.-]|$)")
    matching = [file for file in files if part.search(file.path.removeprefix(options.path))]
    if not matching:
        raise RefusedError(f"No file at {options.path} is of the split {options.files.get('split')!r}.")
    return matching


def _file_source(format_: Format, files: Sequence[FileInfo], options: SourceOptions, inspect: Inspector) -> FileSource:
    """Merge the schemas of files of one format, with the columns of their folders."""
    csv, whole = pick_options(CsvOptions, options.files), options.is_whole or bool(options.files.get("multiline"))
    task = InspectionTask(format_, tuple(files), options.storage, csv, head_bytes=HEAD_BYTES, whole=whole)
    inspected = _inspect_files(task, inspect)
    if format_ is Format.CSV:
        inspected = _cut_at_records(inspected, options.storage, inspect)
    pieces = tuple(piece for file in inspected for piece in file.pieces)
    if not pieces:
        raise RefusedError(f"{files[0].path} holds no rows.")
    if format_ is Format.CSV:
        dialect = CsvDialect.of(csv, files[0].path)
        reader = csv_reader(inspected, options.mode, options.types, dialect, options.storage)
    elif format_ is Format.JSON:
        reader = json_reader(format_, inspected, options.mode, options.types, options.storage)
    else:
        schemas = (FileSchema(file.path, file.schema) for file in inspected)
        reader = SourceReader(
            format_, merge_schemas(schemas, options.mode, options.types, options.columns), options.storage
        )
    return _add_partition_columns(FileSource(reader, pieces), inspected, options)


def _inspect_files(task: InspectionTask, inspect: Inspector) -> list[InspectedFile]:
    """Inspect all files of a source; of text, the first file tells most about its types."""
    if task.format not in (Format.CSV, Format.JSON):
        return inspect(task)
    first, later = replace(task, files=task.files[:1]), task.files[1:]
    return [*first(), *(inspect(replace(task, files=later, head_bytes=LATER_FILE_BYTES)) if later else [])]


def _cut_at_records(
    files: Sequence[InspectedFile], storage: Mapping[str, str], inspect: Inspector
) -> list[InspectedFile]:
    """Let the pieces of large CSV files begin with records, and infer types from samples of them, too."""
    large = [file for file in files if len(file.pieces) > 1]
    if not large:
        return list(files)
    scans = iter(inspect(ScanTask(tuple(piece for file in large for piece in file.pieces), storage)))
    cut = [
        replace(file, pieces=cut_at_records(file.pieces, list(itertools.islice(scans, len(file.pieces)))))
        for file in large
    ]
    sampled = {file.path: file for file in inspect(CsvSampleTask(tuple(cut), storage))}
    return [sampled.get(file.path, file) for file in files]


def _add_partition_columns(
    source: FileSource, inspected: Sequence[InspectedFile], options: SourceOptions
) -> FileSource:
    """Add the columns that a source's folders hold. Raises RefusedError for one that a file has, too."""
    reader, paths = source.reader, [file.path for file in inspected]
    partitions = read_partitions(options.files.get("partitions") or HIVE, base_folder(options.path), paths)
    if not partitions.names:
        return source
    for file in inspected:
        for name in partitions.names:
            if name in (file.profile.fields if file.profile else file.schema.names):
                raise RefusedError(
                    f"{file.path} has a column '{name}', and lies in a folder that gives it one: take the file's "
                    "(--partitions off), or leave it out of the files."
                )
    fields = [field.with_type(options.types.get(field.name, field.type)) for field in partitions.schema]
    values = dict(zip(paths, partitions.values, strict=True))
    pieces = tuple(replace(piece, partition_values=values[piece.path]) for piece in source.pieces)
    inferred = reader.inferred | (frozenset(partitions.names) - options.types.keys())
    schema = pa.schema([*(field for field in reader.schema if field.name not in partitions.names), *fields])
    return FileSource(replace(reader, schema=schema, partitions=partitions.names, inferred=inferred), pieces)


def _lance_source(path: str, storage: Mapping[str, str], columns: Sequence[str]) -> FileSource:
    try:
        dataset = lance.dataset(path, storage_options=dict(storage) or None)
    except (ValueError, OSError) as error:
        raise RefusedError(f"{path} is not a Lance table: {clean_message(error)}.") from error
    pieces = [
        Piece(path, fragment_bytes(fragment), str(dataset.version), (fragment.fragment_id,))
        for fragment in dataset.get_fragments()
    ]
    if not pieces:
        raise RefusedError(f"{path} holds no rows.")
    schema = pa.schema([field for field in dataset.schema if not columns or field.name in columns])
    check_no_blobs(schema)
    return FileSource(SourceReader(Format.LANCE, schema, storage), tuple(pieces))


def fragment_bytes(fragment: lance.LanceFragment) -> int:
    """Return the size of a fragment's data files; 100 bytes per row where sizes are not recorded."""
    sizes = [file.file_size_bytes for file in fragment.metadata.files]
    if all(size is not None for size in sizes):
        return sum(size for size in sizes if size is not None)
    return fragment.metadata.num_rows * 100


def _image_source(files: Sequence[FileInfo], options: SourceOptions, inspect: Inspector) -> FileSource:
    """Describe an image folder: the rows of its `metadata.jsonl`, or a row per file labeled by its folder."""
    metadata = [file for file in files if _is_image_metadata(file) and file.size]
    images = [file for file in files if not _is_image_metadata(file)]
    if not metadata:
        schema = pa.schema([("file_name", pa.string()), ("label", pa.string()), ("image", pa.binary())])
        pieces = tuple(Piece(file.path, file.size, file.revision) for file in images)
        return FileSource(SourceReader(Format.IMAGES, schema, options.storage), pieces)
    inspected = _inspect_files(
        InspectionTask(Format.JSON, tuple(metadata), options.storage, head_bytes=HEAD_BYTES), inspect
    )
    reader = json_reader(Format.IMAGES, inspected, options.mode, options.types, options.storage)
    if "file_name" not in reader.schema.names:
        raise RefusedError(f"{metadata[0].path} has no 'file_name' that names the image of each row.")
    count = max(len(metadata), -(-sum(file.size for file in images) // RANGE_BYTES))
    size = sum(file.size for file in images) // count
    parts = -(-count // len(metadata))
    pieces = tuple(
        Piece(file.path, size, file.revision, (file.size * number // parts, file.size * (number + 1) // parts))
        for file in metadata
        for number in range(parts)
    )
    return FileSource(replace(reader, schema=reader.schema.append(pa.field("image", pa.binary()))), pieces)
