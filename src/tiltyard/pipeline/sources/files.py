"""What a job reads: files found and understood by the driver, and cut into tasks of about the same size."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import lance
import pyarrow as pa

from tiltyard.pipeline.sources.csv_records import Dialect
from tiltyard.pipeline.sources.filesystem import Found, list_files, root_of
from tiltyard.pipeline.sources.inspection import HEAD_BYTES, RANGE_BYTES, Inspected, Inspection, dialect_of
from tiltyard.pipeline.sources.partitions import HIVE, read_partitions
from tiltyard.pipeline.sources.readers import Format, Piece, Reading
from tiltyard.pipeline.sources.schema_merge import FileSchema, SchemaMode, merge_schemas
from tiltyard.pipeline.sources.text_schema import csv_reading, json_reading
from tiltyard.pipeline.spark_tasks import call, run_tasks
from tiltyard.pipeline.table_location import check_values
from tiltyard.pipeline.task_errors import RefusedError, in_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import Run

TASK_BYTES = 256 << 20
MORE_BYTES = 128 << 10
"""How much of the files of text behind the first one their types are guessed from."""

FILES_HERE = 512
"""So many files are looked at in the driver, more of them in tasks."""

_FILES_OF_A_TASK = 64
_FILES_AT_ONCE = 16
_IMAGES = ("bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp")
_BY_NAME = {
    "parquet": Format.PARQUET, "arrow": Format.ARROW, "feather": Format.ARROW, "arrows": Format.ARROW,
    "csv": Format.CSV, "tsv": Format.CSV, "json": Format.JSON, "jsonl": Format.JSON, "ndjson": Format.JSON,
    **dict.fromkeys(_IMAGES, Format.IMAGES),
}  # fmt: skip
_METADATA = "metadata.jsonl"
_COMPRESSED = ("bz2", "zst", "xz", "zip", "lz4", "7z", "br", "snappy", "z")

Look = Callable[[Inspection], list[Inspected]]


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one format, what their rows look like, and the pieces they fall into."""

    reading: Reading
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a source is to be read: `format` and `delimiter` where the names do not tell, `split` of a data set.

    `types` are read in the place of guessed ones (text formats), and files may differ in such columns; `columns` are
    those that matter (empty: all). `nulls` are unquoted texts of CSV that are null, besides the empty one; with
    `multiline`, CSV is not cut within a file. `storage` are Lance's options of the object store.
    """

    path: str
    format: Format | None = None
    split: str | None = None
    delimiter: str | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    schema: SchemaMode = SchemaMode.UNION
    partitions: str = HIVE
    columns: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    multiline: bool = False


def find_source(wanted: Wanted, look: Look | None = None) -> Source:
    """Look at the files, all of them. Raises RefusedError if there are none, or what they are cannot be told."""
    if wanted.format is Format.LANCE or (wanted.format is None and wanted.path.rstrip("/").endswith(".lance")):
        return _lance(wanted.path.rstrip("/"), wanted.storage, wanted.columns)
    files = list_files(wanted.path, wanted.storage)
    kind = wanted.format or _format(wanted.path, files)
    if len(files) > 1 and not wanted.format:
        files = _of_format(kind, files)
    files = _of_split(files, wanted) if wanted.split else files
    look = look or look_here
    if kind is Format.IMAGES:
        return _images(files, wanted, look)
    files = [file for file in files if file.size]
    if not files:
        raise RefusedError(f"All files at {wanted.path} are empty.")
    return _files(kind, files, wanted, look)


def look_here(inspection: Inspection) -> list[Inspected]:
    """Look at files in threads of this process."""
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return [one for part in pool.map(call, inspection.parts(1)) for one in part]


def look_in_tasks(run: Run, spark: SparkSession) -> Look:
    """A way to look at files that takes tasks for many of them."""

    def look(inspection: Inspection) -> list[Inspected]:
        if len(inspection.files) <= FILES_HERE:
            return look_here(inspection)
        parts = run_tasks(spark, run, call, inspection.parts(_FILES_OF_A_TASK), name="look at files")
        return [one for part in parts for one in part]

    return look


def balanced(pieces: Sequence[Piece], slots: int, task_bytes: int = TASK_BYTES) -> list[tuple[Piece, ...]]:
    """Tasks of neighbouring pieces, of about one size: as many as fill all slots evenly, no larger than asked."""
    ends = list(itertools.accumulate(max(1, piece.size) for piece in pieces))
    rounds = -(-ends[-1] // (task_bytes * slots))
    count = min(len(pieces), rounds * slots)
    # Each cut is where the pieces so far come nearest to their share.
    cuts = [0, *(bisect.bisect_left(ends, ends[-1] * part // count) + 1 for part in range(1, count)), len(pieces)]
    return [tuple(pieces[a:b]) for a, b in itertools.pairwise(sorted(set(cuts))) if a < b]


def _format(path: str, files: Sequence[Found]) -> Format:
    """The one format of the files, by their names; of images, whatever describes them."""
    kinds = {kind for file in files if (kind := _format_of(file)) is not None}
    if Format.IMAGES in kinds and all(_is_told(file) or _format_of(file) in (Format.IMAGES, None) for file in files):
        return Format.IMAGES
    if len(kinds) != 1:
        told = ", ".join(sorted(kinds)) or "no known format"
        raise RefusedError(f"The files at {path} are of {told}: name one with --format, or fewer files.")
    return kinds.pop()


def _format_of(file: Found) -> Format | None:
    name = file.path.rpartition("/")[2].lower()
    plain = name.removesuffix(".gz")
    kind = _BY_NAME.get(plain.rpartition(".")[2])
    return kind if plain == name or kind in (Format.CSV, Format.JSON) else None


def _of_format(kind: Format, files: Sequence[Found]) -> list[Found]:
    """The files of a format, without others that lie beside them (a card, a licence).

    Raises RefusedError for one of this format that is compressed in a way that is not read.
    """
    for file in files:
        name, _, ending = file.path.lower().rpartition(".")
        if ending in _COMPRESSED and _format_of(replace(file, path=name)) is kind:
            raise RefusedError(f"{file.path} is compressed as .{ending}, which is not read: unpack it, or use .gz.")
    return [file for file in files if _format_of(file) is kind or _is_told(file)]


def _is_told(file: Found) -> bool:
    return file.path.rpartition("/")[2] == _METADATA


def _of_split(files: Sequence[Found], wanted: Wanted) -> list[Found]:
    """Files of one split, as data sets name them: `train/…`, `train-00000-of-00002.parquet`, `data/train.csv`."""
    part = re.compile(rf"(^|[/_.-]){re.escape(wanted.split or '')}([/_.-]|$)")
    found = [file for file in files if part.search(file.path.removeprefix(wanted.path))]
    if not found:
        raise RefusedError(f"No file at {wanted.path} is of the split {wanted.split!r}.")
    return found


def _files(kind: Format, files: Sequence[Found], wanted: Wanted, look: Look) -> Source:
    """Files of a format whose schemas are merged, with the columns that their folders hold."""
    dialect = Dialect(wanted.delimiter, wanted.nulls) if wanted.delimiter else None
    inspection = Inspection(
        kind, tuple(files), wanted.storage, dialect, wanted.nulls, head_bytes=HEAD_BYTES, whole=wanted.multiline
    )
    found = _looked_at(inspection, look)
    pieces = tuple(piece for one in found for piece in one.pieces)
    if not pieces:
        raise RefusedError(f"{files[0].path} holds no rows.")
    if kind is Format.CSV:
        own = dialect or dialect_of(files[0], wanted.nulls)
        reading = csv_reading(found, wanted.schema, wanted.types, own, wanted.storage)
    elif kind is Format.JSON:
        reading = json_reading(kind, found, wanted.schema, wanted.types, wanted.storage)
    else:
        schemas = (FileSchema(one.path, one.schema) for one in found)
        reading = Reading(kind, merge_schemas(schemas, wanted.schema, wanted.types, wanted.columns), wanted.storage)
    return _with_folders(Source(reading, pieces), found, wanted)


def _looked_at(inspection: Inspection, look: Look) -> list[Inspected]:
    """All files of a source; of text, the first file tells most about its types."""
    if inspection.format not in (Format.CSV, Format.JSON):
        return look(inspection)
    first, rest = replace(inspection, files=inspection.files[:1]), inspection.files[1:]
    return [*first(), *(look(replace(inspection, files=rest, head_bytes=MORE_BYTES)) if rest else [])]


def _with_folders(source: Source, found: Sequence[Inspected], wanted: Wanted) -> Source:
    """A source with the columns that its folders hold. Raises RefusedError for one that the files have, too."""
    reading, paths = source.reading, [one.path for one in found]
    folders = read_partitions(wanted.partitions, root_of(wanted.path), paths)
    if not folders.names:
        return source
    for one in found:
        for name in folders.names:
            if name in (one.evidence.fields if one.evidence else one.schema.names):
                raise RefusedError(
                    f"{one.path} has a column '{name}', and lies in a folder that gives it one: take the file's "
                    "(--partitions off), or leave it out of the files."
                )
    fields = [own.with_type(wanted.types.get(own.name, own.type)) for own in folders.schema]
    values = dict(zip(paths, folders.values, strict=True))
    pieces = tuple(replace(piece, folders=values[piece.path]) for piece in source.pieces)
    guessed = reading.guessed | (frozenset(folders.names) - wanted.types.keys())
    schema = pa.schema([*(own for own in reading.schema if own.name not in folders.names), *fields])
    return Source(replace(reading, schema=schema, partitions=folders.names, guessed=guessed), pieces)


def _lance(path: str, storage: Mapping[str, str], columns: Sequence[str]) -> Source:
    try:
        dataset = lance.dataset(path, storage_options=dict(storage) or None)
    except (ValueError, OSError) as error:
        raise RefusedError(f"{path} is no Lance table: {in_words(error)}.") from error
    pieces = [
        Piece(path, fragment_bytes(fragment), str(dataset.version), (fragment.fragment_id,))
        for fragment in dataset.get_fragments()
    ]
    if not pieces:
        raise RefusedError(f"{path} holds no rows.")
    schema = pa.schema([field for field in dataset.schema if not columns or field.name in columns])
    check_values(schema)
    return Source(Reading(Format.LANCE, schema, storage), tuple(pieces))


def fragment_bytes(fragment: lance.LanceFragment) -> int:
    """The size of a fragment's data files; 100 bytes a row where they do not say."""
    sizes = [file.file_size_bytes for file in fragment.metadata.files]
    if all(size is not None for size in sizes):
        return sum(size for size in sizes if size is not None)
    return fragment.metadata.num_rows * 100


def _images(files: Sequence[Found], wanted: Wanted, look: Look) -> Source:
    """An image folder: rows of `metadata.jsonl` with their files, or else a label for each file, its folder."""
    told = [file for file in files if _is_told(file) and file.size]
    images = [file for file in files if not _is_told(file)]
    if not told:
        schema = pa.schema([("file_name", pa.string()), ("label", pa.string()), ("image", pa.binary())])
        pieces = tuple(Piece(file.path, file.size, file.mark) for file in images)
        return Source(Reading(Format.IMAGES, schema, wanted.storage), pieces)
    found = _looked_at(Inspection(Format.JSON, tuple(told), wanted.storage, head_bytes=HEAD_BYTES), look)
    reading = json_reading(Format.IMAGES, found, wanted.schema, wanted.types, wanted.storage)
    if "file_name" not in reading.schema.names:
        raise RefusedError(f"{told[0].path} has no 'file_name' that names the image of each row.")
    count = max(len(told), -(-sum(file.size for file in images) // RANGE_BYTES))
    size = sum(file.size for file in images) // count
    parts = -(-count // len(told))
    pieces = tuple(
        Piece(file.path, size, file.mark, (file.size * n // parts, file.size * (n + 1) // parts))
        for file in told
        for n in range(parts)
    )
    return Source(replace(reading, schema=reading.schema.append(pa.field("image", pa.binary()))), pieces)
