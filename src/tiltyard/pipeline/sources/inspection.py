"""Inspect the files of a source: find the schema of each, split it into pieces, and choose the types of text columns.

Types of text are inferred from the beginnings of all files, or named by the user. Many files are inspected in tasks.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet

from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.type_names import format_type
from tiltyard.pipeline.sources import text_blocks
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.csv_records import (
    MAX_RECORD_BYTES,
    CsvDialect,
    infer_csv_schema,
    read_header,
    split_records,
)
from tiltyard.pipeline.sources.file_options import CsvOptions
from tiltyard.pipeline.sources.filesystem import FileInfo, open_file
from tiltyard.pipeline.sources.json_lines import infer_json_schema, profile_json
from tiltyard.pipeline.sources.readers import Format, Piece, SourceReader
from tiltyard.pipeline.sources.text_types import JsonProfile, merge_inferred_types, null_to_string
from tiltyard.pipeline.sources.types import FileSchema, SchemaMode, check_column_names, merge_schemas

RANGE_BYTES = 32 << 20
HEAD_BYTES = 1 << 20
MAX_ECHO = 80
"""How many characters of a name a message repeats."""
_DELIMITERS = (";", "\t", "|", ",")
"""Delimiters that files have, besides the one that their names tell."""
"""Bytes at the beginning of a text file from which types are inferred."""

_SAMPLES, _SAMPLE_BYTES = 8, 64 << 10
"""How many samples within a large file are inspected, too, and the bytes of each."""


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """A file's schema and its pieces. The schema of CSV is inferred; JSON lines have a `profile` instead.

    Pieces of CSV begin at any byte until they are cut at records.
    """

    path: str
    schema: pa.Schema
    pieces: tuple[Piece, ...]
    profile: JsonProfile | None = None


@dataclass(frozen=True, slots=True)
class InspectionTask:
    """A task that inspects files of one format.

    `head_bytes` of each text file are read; with `whole`, text files are not split.
    """

    format: Format
    files: tuple[FileInfo, ...]
    storage: Mapping[str, str]
    csv: CsvOptions = field(default_factory=CsvOptions)
    head_bytes: int = HEAD_BYTES
    whole: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def __call__(self) -> list[InspectedFile]:
        """Inspect the files. Raises RefusedError for one that is not of the format."""
        inspectors = {
            Format.PARQUET: self._inspect_parquet,
            Format.ARROW: self._inspect_arrow,
            Format.CSV: self._inspect_csv,
            Format.JSON: self._inspect_json,
        }
        return [inspectors[self.format](file) for file in self.files]

    def split(self, count: int) -> list[InspectionTask]:
        """Split the task into tasks of `count` files each."""
        return [replace(self, files=self.files[first : first + count]) for first in range(0, len(self.files), count)]

    def _inspect_parquet(self, file: FileInfo) -> InspectedFile:
        try:
            with pyarrow.parquet.ParquetFile(open_file(file.path, self.storage)) as parquet:
                metadata = parquet.metadata
                sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
                pieces = tuple(Piece(file.path, size, file.revision, (number,)) for number, size in enumerate(sizes))
                return InspectedFile(file.path, parquet.schema_arrow.remove_metadata(), pieces)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is not a Parquet file: {error}") from error

    def _inspect_arrow(self, file: FileInfo) -> InspectedFile:
        """Return a file's batches as pieces; a stream is one piece."""
        try:
            with open_file(file.path, self.storage) as opened:
                is_file = opened.read(6) == b"ARROW1"
                opened.seek(0)
                if not is_file:
                    schema = pa.ipc.open_stream(opened).schema.remove_metadata()
                    return InspectedFile(file.path, schema, (Piece(file.path, file.size, file.revision),))
                batches = pa.ipc.open_file(opened)
                count = batches.num_record_batches
                size = file.size // max(1, count)
                pieces = tuple(Piece(file.path, size, file.revision, (number, number + 1)) for number in range(count))
                return InspectedFile(file.path, batches.schema.remove_metadata(), pieces)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is not an Arrow file or stream: {error}") from error

    def _inspect_csv(self, file: FileInfo) -> InspectedFile:
        dialect = CsvDialect.of(self.csv, file.path)
        head, complete = read_head(file, self.storage, self.head_bytes)
        names, start = read_header(head, dialect, file.path)
        if not self.csv.get("delimiter"):
            _check_delimiter(names, dialect, file.path)
        ends, _ = split_records(head[start:], dialect)
        end = len(head) if complete else start + (int(ends[-1]) if len(ends) else 0)
        try:
            schema = infer_csv_schema(head[start:end], names, dialect)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is not a CSV file: {error}") from error
        pieces = tuple(replace(piece, names=names, dialect=dialect) for piece in self._ranges(file))
        return InspectedFile(file.path, schema, pieces)

    def _inspect_json(self, file: FileInfo) -> InspectedFile:
        head, complete = read_head(file, self.storage, self.head_bytes)
        profile, pieces = profile_json(head, complete=complete), self._ranges(file)
        for sample in _samples(pieces, self.storage):
            profile.merge(profile_json(sample[sample.find(b"\n") + 1 : sample.rfind(b"\n") + 1], complete=True))
        return InspectedFile(file.path, pa.schema([]), pieces, profile)

    def _ranges(self, file: FileInfo) -> tuple[Piece, ...]:
        if file.path.lower().endswith(".gz"):
            return (Piece(file.path, file.size * 4, file.revision),)
        count = 1 if self.whole else -(-file.size // RANGE_BYTES)
        cuts = [file.size * number // count for number in range(count + 1)]
        return tuple(Piece(file.path, b - a, file.revision, (a, b)) for a, b in itertools.pairwise(cuts))


@dataclass(frozen=True, slots=True)
class CsvSampleTask:
    """A task that infers types of CSV files also from samples within large ones, whose pieces begin with records."""

    files: tuple[InspectedFile, ...]
    storage: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.files)

    def __call__(self) -> list[InspectedFile]:
        """Return the files with the types that their samples fit, too."""
        return [self._add_samples(file) for file in self.files]

    def split(self, count: int) -> list[CsvSampleTask]:
        """Split the task into tasks of `count` files each."""
        return [replace(self, files=self.files[first : first + count]) for first in range(0, len(self.files), count)]

    def _add_samples(self, file: InspectedFile) -> InspectedFile:
        schema, names, dialect = file.schema, file.pieces[0].names, file.pieces[0].dialect or CsvDialect()
        for sample in _samples(file.pieces, self.storage):
            ends, _ = split_records(sample, dialect)
            records = sample[: int(ends[-1])] if len(ends) else b""
            schema = _merge_csv_schemas(schema, infer_csv_schema(records, names, dialect))
        return replace(file, schema=schema)


def _samples(pieces: Sequence[Piece], storage: Mapping[str, str]) -> Iterator[bytes]:
    """Yield what some pieces of a large file begin with: the beginning of the file need not represent them."""
    with open_file(pieces[0].path, storage) as opened:
        for piece in pieces[1 :: max(1, len(pieces) // _SAMPLES)]:
            opened.seek(piece.part[0])
            yield bytes(opened.read(_SAMPLE_BYTES))


def _merge_csv_schemas(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the inferred types for the values of both, column by column."""
    return pa.schema(
        [
            field.with_type(merge_inferred_types(field.type, other.type))
            for field, other in zip(left, right, strict=True)
        ]
    )


def _check_delimiter(names: Sequence[str], dialect: CsvDialect, path: str) -> None:
    """Raise RefusedError for a file of one column whose name has another delimiter in it: nobody has named one."""
    found = [each for each in _DELIMITERS if each != dialect.delimiter and each in names[0]]
    if len(names) == 1 and found:
        other, own = (repr(text) for text in (found[0], dialect.delimiter))
        raise RefusedError(
            f"{path} has one column, '{names[0][:MAX_ECHO]}': its values seem to be separated by {other}. Say so by "
            f"--delimiter {other}, or --delimiter {own} if it is one column."
        )


def read_head(file: FileInfo, storage: Mapping[str, str], size: int = HEAD_BYTES) -> tuple[bytes, bool]:
    """Return the beginning of a text file, and whether that is all of it. Raises RefusedError."""
    with open_file(file.path, storage) as opened:
        try:
            text = text_blocks.open_decompressed(opened, file.path)
            head = bytes(text.read(size))
            complete = len(head) < size
            while not complete and b"\n" not in head and len(head) < MAX_RECORD_BYTES:  # the first line is longer
                more = bytes(text.read(len(head)))
                complete = len(more) < len(head)
                head += more
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise RefusedError(f"{file.path} cannot be unpacked, as its name says it can: {error}.") from error
    return head, complete


_MAX_COLUMNS_SHOWN = 100

Types = Mapping[str, pa.DataType]


def csv_reader(
    files: Sequence[InspectedFile], mode: SchemaMode, types: Types, dialect: CsvDialect, storage: Mapping[str, str]
) -> SourceReader:
    """Make a reader of CSV: the columns of all files, string where their inferred types differ. Raises RefusedError."""
    chosen = {name: dtype for name, dtype in types.items() if _is_parsed_directly(dtype)}
    chosen |= {name: pa.string() for name, dtype in types.items() if _is_text_dictionary(dtype)}
    inferred: dict[str, pa.DataType] = {}
    for file in files:
        for column in file.schema:
            inferred[column.name] = merge_inferred_types(inferred.get(column.name, column.type), column.type)
    merged = {name: null_to_string(dtype) for name, dtype in inferred.items()} | chosen
    schemas = [pa.schema([field.with_type(merged[field.name]) for field in file.schema]) for file in files]
    schema = merge_schemas((FileSchema(file.path, fields) for file, fields in zip(files, schemas, strict=True)), mode)
    return SourceReader(Format.CSV, schema, storage, dialect, inferred=frozenset(schema.names) - chosen.keys())


def json_reader(
    format_: Format, files: Sequence[InspectedFile], mode: SchemaMode, types: Types, storage: Mapping[str, str]
) -> SourceReader:
    """Make a reader of JSON lines: the fields of all files, of the type that most values have. Raises RefusedError."""
    profile = JsonProfile()
    for file in files[:1] if mode is SchemaMode.FIRST else files:
        if mode is SchemaMode.STRICT:
            merge_schemas([FileSchema(each.path, _schema_of_json_file(each)) for each in (files[0], file)], mode)
        profile.merge(file.profile or JsonProfile())
    if not profile.fields:
        raise RefusedError(f"No line of {files[0].path} is a JSON object: write one object to a line (JSON lines).")
    inferred = infer_json_schema(profile)
    check_column_names(FileSchema(files[0].path, inferred))
    reader = SourceReader(
        format_,
        pa.schema([field.with_type(null_to_string(field.type)) for field in inferred]),
        storage,
        inferred=frozenset(inferred.names),
        number_fields=frozenset(name for name, field_profile in profile.fields.items() if field_profile.is_number),
        numbers_as_text=frozenset(
            name for name, field_profile in profile.fields.items() if field_profile.is_number_as_text()
        ),
        ignores_unknown_fields=mode is SchemaMode.FIRST,
    )
    for name, dtype in types.items():
        if name not in inferred.names:  # a field that the inspected lines lack; CSV names all columns in its header
            reader = replace(reader, schema=reader.schema.append(pa.field(name, dtype)))
        reader = _retype_json(reader, name, dtype)
    return reader


def adapt_to_table(reader: SourceReader, table: pa.Schema, chosen: ColumnSelection) -> SourceReader:
    """Replace inferred types with those of the table that the rows are added to.

    So text that looks like a number stays as written where the table has text.
    """
    if reader.format not in (Format.CSV, Format.JSON):
        return reader
    retype = _retype_csv if reader.format is Format.CSV else _retype_json
    for name in chosen.names or reader.schema.names:
        table_column = (chosen.renamed or {}).get(name, name)
        if name in reader.inferred and table_column in table.names and table_column not in (chosen.types or {}):
            reader = retype(reader, name, table.field(table_column).type)
    return reader


def inferred_casts(reader: SourceReader) -> str:
    """Return the inferred types as options that would choose them: `--cast id=int64 --cast zip=string`; "" without any.

    Only the first of very many columns are shown.
    """
    fields = [field for field in reader.schema if field.name in reader.inferred]
    more = f" and {len(fields) - _MAX_COLUMNS_SHOWN} more" if len(fields) > _MAX_COLUMNS_SHOWN else ""
    casts = " ".join(f"--cast '{field.name}={format_type(field.type)}'" for field in fields[:_MAX_COLUMNS_SHOWN])
    return casts + more


def _retype_csv(reader: SourceReader, name: str, dtype: pa.DataType) -> SourceReader:
    if _is_text_dictionary(dtype):
        return _with_type(reader, name, pa.string())
    return _with_type(reader, name, dtype) if _is_parsed_directly(dtype) else reader


def _retype_json(reader: SourceReader, name: str, dtype: pa.DataType) -> SourceReader:
    """Change the type of a field where JSON is parsed to it directly; others are cast from the inferred type."""
    is_number = name in reader.number_fields
    if is_number and pa.types.is_string(dtype):
        return replace(_with_type(reader, name, dtype), numbers_as_text=reader.numbers_as_text | {name})
    if is_number and (pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)):
        fits = _is_parsed_directly(dtype)
        parsed_numbers = replace(reader, numbers_as_text=reader.numbers_as_text - {name})
        return _with_type(parsed_numbers, name, dtype) if fits else reader
    is_text_or_time = pa.types.is_timestamp(dtype) or pa.types.is_date(dtype) or pa.types.is_string(dtype)
    old_type = reader.schema.field(name).type
    if not is_number and is_text_or_time and (pa.types.is_string(old_type) or pa.types.is_temporal(old_type)):
        return _with_type(reader, name, dtype)
    if pa.types.is_nested(dtype):  # the user has chosen what its numbers are rounded to
        return replace(reader, inferred=reader.inferred - {name})
    return reader


def _with_type(reader: SourceReader, name: str, dtype: pa.DataType) -> SourceReader:
    index = reader.schema.get_field_index(name)
    schema = reader.schema.set(index, reader.schema.field(index).with_type(dtype))
    return replace(reader, schema=schema, inferred=reader.inferred - {name})


def _is_parsed_directly(dtype: pa.DataType) -> bool:
    """Return whether text is parsed to the type directly; other types are cast from the inferred type."""
    indirect = (pa.types.is_nested, pa.types.is_dictionary, pa.types.is_float16, pa.types.is_duration, pa.types.is_null)
    return not any(is_kind(dtype) for is_kind in indirect)


def _is_text_dictionary(dtype: pa.DataType) -> bool:
    """Return whether text is cast to the type without parsing, as it is written."""
    return pa.types.is_dictionary(dtype) and not pa.types.is_nested(dtype.value_type)


def _schema_of_json_file(file: InspectedFile) -> pa.Schema:
    return infer_json_schema(file.profile or JsonProfile())
