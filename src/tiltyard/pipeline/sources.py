"""What a job reads: files found and understood by the driver, and cut into tasks of about the same size."""

from __future__ import annotations

import bisect
import gzip
import itertools
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import lance
import pyarrow as pa
import pyarrow.parquet

from tiltyard.pipeline import lines
from tiltyard.pipeline.opening import Found, list_files, open_file
from tiltyard.pipeline.reading import Format, Piece, Reading
from tiltyard.pipeline.refusing import RefusedError, in_words

TASK_BYTES = 256 << 20
RANGE_BYTES = 32 << 20
HEAD_BYTES = 1 << 20
"""How much of the first file of text its types are guessed from."""

_FOOTERS_AT_ONCE = 16
_IMAGES = ("bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp")
_BY_NAME = {
    "parquet": Format.PARQUET, "arrow": Format.ARROW, "feather": Format.ARROW, "arrows": Format.ARROW,
    "csv": Format.CSV, "tsv": Format.CSV, "csv.gz": Format.CSV, "tsv.gz": Format.CSV,
    "json": Format.JSON, "jsonl": Format.JSON, "ndjson": Format.JSON, "json.gz": Format.JSON, "jsonl.gz": Format.JSON,
    **dict.fromkeys(_IMAGES, Format.IMAGES),
}  # fmt: skip
_METADATA = "metadata.jsonl"


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

    `types` are read in the place of guessed ones (text formats); `storage` are Lance's options of the object store.
    """

    path: str
    format: Format | None = None
    split: str | None = None
    delimiter: str | None = None
    types: Mapping[str, pa.DataType] | None = None
    storage: Mapping[str, str] | None = None


def find_source(wanted: Wanted) -> Source:
    """Look at the files. Raises RefusedError if there are none, or what they are cannot be told."""
    storage = dict(wanted.storage or {})
    if wanted.format is Format.LANCE or (wanted.format is None and wanted.path.rstrip("/").endswith(".lance")):
        return _lance(wanted.path.rstrip("/"), storage)
    files = list_files(wanted.path, storage)
    kind = wanted.format or _format(wanted.path, files)
    files = [file for file in files if len(files) == 1 or wanted.format or _format_of(file) is kind or _is_told(file)]
    files = _of_split(files, wanted) if wanted.split else files
    if kind is Format.IMAGES:
        return _images(files, storage)
    files = [file for file in files if file.size]
    if not files:
        raise RefusedError(f"All files at {wanted.path} are empty.")
    if kind is Format.PARQUET:
        return _parquet(files, storage)
    if kind is Format.ARROW:
        return _arrow(files, storage)
    return _text(kind, files, wanted, storage)


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
    return _BY_NAME.get(name.partition(".")[2]) or _BY_NAME.get(name.rpartition(".")[2])


def _is_told(file: Found) -> bool:
    return file.path.rpartition("/")[2] == _METADATA


def _of_split(files: Sequence[Found], wanted: Wanted) -> list[Found]:
    """Files of one split, as data sets name them: `train/…`, `train-00000-of-00002.parquet`, `data/train.csv`."""
    part = re.compile(rf"(^|[/_.-]){re.escape(wanted.split or '')}([/_.-]|$)")
    found = [file for file in files if part.search(file.path.removeprefix(wanted.path))]
    if not found:
        raise RefusedError(f"No file at {wanted.path} is of the split {wanted.split!r}.")
    return found


def _parquet(files: Sequence[Found], storage: Mapping[str, str]) -> Source:
    def footer(file: Found) -> tuple[pa.Schema, list[Piece]]:
        try:
            with pyarrow.parquet.ParquetFile(open_file(file.path, storage)) as opened:
                told = opened.metadata
                sizes = [told.row_group(number).total_byte_size for number in range(told.num_row_groups)]
                return opened.schema_arrow, [Piece(file.path, s, file.mark, (n,)) for n, s in enumerate(sizes)]
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is no Parquet file: {error}") from error

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        found = list(pool.map(footer, files))
    pieces = tuple(piece for _, own in found for piece in own)
    if not pieces:
        raise RefusedError(f"{files[0].path} holds no rows.")
    return Source(Reading(Format.PARQUET, found[0][0].remove_metadata(), storage), pieces)


def _arrow(files: Sequence[Found], storage: Mapping[str, str]) -> Source:
    schema: pa.Schema | None = None
    pieces: list[Piece] = []
    for file in files:
        try:
            own, its = _arrow_pieces(file, storage)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is no Arrow file or stream: {error}") from error
        pieces += its
        schema = schema or own
    if schema is None or not pieces:
        raise RefusedError(f"{files[0].path} holds no rows.")
    return Source(Reading(Format.ARROW, schema.remove_metadata(), storage), tuple(pieces))


def _arrow_pieces(file: Found, storage: Mapping[str, str]) -> tuple[pa.Schema, list[Piece]]:
    """A file's schema and batches; a stream is one piece. Raises pa.ArrowInvalid for what is neither."""
    with open_file(file.path, storage) as opened:
        is_file = opened.read(6) == b"ARROW1"
        opened.seek(0)
        if not is_file:
            return pa.ipc.open_stream(opened).schema, [Piece(file.path, file.size, file.mark)]
        batches = pa.ipc.open_file(opened)
        size = file.size // max(1, batches.num_record_batches)
        return batches.schema, [
            Piece(file.path, size, file.mark, (n, n + 1)) for n in range(batches.num_record_batches)
        ]


def _text(kind: Format, files: Sequence[Found], wanted: Wanted, storage: Mapping[str, str]) -> Source:
    delimiter = wanted.delimiter or ("\t" if files[0].path.removesuffix(".gz").endswith(".tsv") else ",")
    head, complete = _head(files[0], storage)
    try:
        schema = (
            lines.json_schema(head, complete=complete)
            if kind is Format.JSON
            else lines.csv_schema(head, delimiter, complete=complete)
        )
    except pa.ArrowInvalid as error:
        raise RefusedError(f"{files[0].path} is no {kind.value} file: {error}") from error
    if not schema.names:
        raise RefusedError(f"No line of {files[0].path} is a JSON object: write one object to a line (JSON lines).")
    for name, dtype in (wanted.types or {}).items():
        at = schema.get_field_index(name)
        if at >= 0 and _is_plain(dtype):
            schema = schema.set(at, pa.field(name, dtype))
        elif at < 0 and kind is Format.JSON:  # a field that the head lacks; CSV has told all names
            schema = schema.append(pa.field(name, dtype))
    pieces = tuple(piece for file in files for piece in _ranges(file))
    return Source(Reading(kind, schema, storage, delimiter), pieces)


def _is_plain(dtype: pa.DataType) -> bool:
    """Whether text is parsed to it right away; the others are cast from what was guessed."""
    return not (pa.types.is_nested(dtype) or pa.types.is_dictionary(dtype) or pa.types.is_float16(dtype))


def _head(file: Found, storage: Mapping[str, str]) -> tuple[bytes, bool]:
    """The beginning of a text, and whether that is all of it."""
    with open_file(file.path, storage) as opened:
        try:
            head = bytes(lines.unpacked(opened, file.path).read(HEAD_BYTES))
        except gzip.BadGzipFile as error:
            raise RefusedError(f"{file.path} is not compressed, as its name says it is: {error}.") from error
    return head, len(head) < HEAD_BYTES


def _ranges(file: Found) -> list[Piece]:
    if file.path.endswith(".gz"):
        return [Piece(file.path, file.size * 4, file.mark)]
    count = -(-file.size // RANGE_BYTES)
    cuts = [file.size * number // count for number in range(count + 1)]
    return [Piece(file.path, b - a, file.mark, (a, b)) for a, b in itertools.pairwise(cuts)]


def _lance(path: str, storage: Mapping[str, str]) -> Source:
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
    return Source(Reading(Format.LANCE, dataset.schema, storage), tuple(pieces))


def fragment_bytes(fragment: lance.LanceFragment) -> int:
    """The size of a fragment's data files; 100 bytes a row where they do not say."""
    sizes = [file.file_size_bytes for file in fragment.metadata.files]
    if all(size is not None for size in sizes):
        return sum(size for size in sizes if size is not None)
    return fragment.metadata.num_rows * 100


def _images(files: Sequence[Found], storage: Mapping[str, str]) -> Source:
    """An image folder: rows of `metadata.jsonl` with their files, or else a label for each file, its folder."""
    told = [file for file in files if _is_told(file) and file.size]
    images = [file for file in files if not _is_told(file)]
    if not told:
        schema = pa.schema([("file_name", pa.string()), ("label", pa.string()), ("image", pa.binary())])
        pieces = tuple(Piece(file.path, file.size, file.mark) for file in images)
        return Source(Reading(Format.IMAGES, schema, storage), pieces)
    head, complete = _head(told[0], storage)
    schema = lines.json_schema(head, complete=complete)
    if "file_name" not in schema.names:
        raise RefusedError(f"{told[0].path} has no 'file_name' that names the image of each row.")
    count = max(len(told), -(-sum(file.size for file in images) // RANGE_BYTES))
    size = sum(file.size for file in images) // count
    parts = -(-count // len(told))
    pieces = tuple(
        Piece(file.path, size, file.mark, (file.size * n // parts, file.size * (n + 1) // parts))
        for file in told
        for n in range(parts)
    )
    return Source(Reading(Format.IMAGES, schema.append(pa.field("image", pa.binary())), storage), pieces)
