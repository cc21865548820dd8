"""Choose the column types of text sources: inferred from the beginnings of all files, or named by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.csv_records import CsvDialect
from tiltyard.pipeline.sources.inspection import InspectedFile
from tiltyard.pipeline.sources.json_lines import infer_json_schema
from tiltyard.pipeline.sources.readers import Format, SourceReader
from tiltyard.pipeline.sources.schema_merge import FileSchema, SchemaMode, check_column_names, merge_schemas
from tiltyard.pipeline.sources.type_inference import JsonProfile, merge_inferred_types
from tiltyard.pipeline.sources.type_syntax import format_type
from tiltyard.pipeline.task_errors import RefusedError

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
        for field in file.schema:
            inferred[field.name] = merge_inferred_types(inferred.get(field.name, field.type), field.type)
    merged = {name: _null_to_string(dtype) for name, dtype in inferred.items()} | chosen
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
        pa.schema([field.with_type(_null_to_string(field.type)) for field in inferred]),
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


def _null_to_string(dtype: pa.DataType) -> pa.DataType:
    """Return string for a column without values: it loses none that come later."""
    return pa.string() if pa.types.is_null(dtype) else dtype


def _schema_of_json_file(file: InspectedFile) -> pa.Schema:
    return infer_json_schema(file.profile or JsonProfile())
