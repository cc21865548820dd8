"""How sources of text are read: the types of their columns, guessed from the beginnings of all files, or named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from tiltyard.pipeline.sources.csv_records import Dialect
from tiltyard.pipeline.sources.inspection import Inspected
from tiltyard.pipeline.sources.json_lines import json_schema
from tiltyard.pipeline.sources.readers import Format, Reading
from tiltyard.pipeline.sources.schema_merge import FileSchema, SchemaMode, check_names, merge_schemas
from tiltyard.pipeline.sources.type_inference import Evidence, merge_guesses
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.type_names import show_type
from tiltyard.pipeline.writing.casts import Chosen

_COLUMNS_TOLD = 100

Types = Mapping[str, pa.DataType]


def csv_reading(
    found: Sequence[Inspected], mode: SchemaMode, types: Types, dialect: Dialect, storage: Mapping[str, str]
) -> Reading:
    """How CSV is read: columns of all files, text where their guesses differ. Raises RefusedError."""
    given = {name: dtype for name, dtype in types.items() if _is_parsed(dtype)}
    given |= {name: pa.string() for name, dtype in types.items() if _is_made_of_text(dtype)}
    guesses: dict[str, pa.DataType] = {}
    for one in found:
        for field in one.schema:
            guesses[field.name] = merge_guesses(guesses.get(field.name, field.type), field.type)
    merged = {name: _or_text(dtype) for name, dtype in guesses.items()} | given
    own = [pa.schema([field.with_type(merged[field.name]) for field in one.schema]) for one in found]
    schema = merge_schemas((FileSchema(one.path, fields) for one, fields in zip(found, own, strict=True)), mode)
    return Reading(Format.CSV, schema, storage, dialect, guessed=frozenset(schema.names) - given.keys())


def json_reading(
    kind: Format, found: Sequence[Inspected], mode: SchemaMode, types: Types, storage: Mapping[str, str]
) -> Reading:
    """How JSON lines are read: fields of all files, of the type that most values have. Raises RefusedError."""
    evidence = Evidence()
    for one in found[:1] if mode is SchemaMode.FIRST else found:
        if mode is SchemaMode.STRICT:
            merge_schemas([FileSchema(some.path, _json_schema(some)) for some in (found[0], one)], mode)
        evidence.join(one.evidence or Evidence())
    if not evidence.fields:
        raise RefusedError(f"No line of {found[0].path} is a JSON object: write one object to a line (JSON lines).")
    guessed = json_schema(evidence)
    check_names(FileSchema(found[0].path, guessed))
    reading = Reading(
        kind,
        pa.schema([field.with_type(_or_text(field.type)) for field in guessed]),
        storage,
        guessed=frozenset(guessed.names),
        numbers=frozenset(name for name, own in evidence.fields.items() if own.is_number),
        numbers_as_text=frozenset(name for name, own in evidence.fields.items() if own.is_number_as_text()),
        leaves_others=mode is SchemaMode.FIRST,
    )
    for name, dtype in types.items():
        if name not in guessed.names:  # a field that the beginnings lack; CSV has told all names
            reading = replace(reading, schema=reading.schema.append(pa.field(name, dtype)))
        reading = _retyped_json(reading, name, dtype)
    return reading


def read_for_table(reading: Reading, table: pa.Schema, chosen: Chosen) -> Reading:
    """The same with the types of the table that rows are added to, for columns whose types were guessed.

    So text that looks like a number stays as it is written where the table has text.
    """
    if reading.format not in (Format.CSV, Format.JSON):
        return reading
    retyped = _retyped_csv if reading.format is Format.CSV else _retyped_json
    for name in chosen.names or reading.schema.names:
        new = (chosen.renamed or {}).get(name, name)
        if name in reading.guessed and new in table.names and new not in (chosen.types or {}):
            reading = retyped(reading, name, table.field(new).type)
    return reading


def guesses(reading: Reading) -> str:
    """The guessed types as options that name others: `--cast id=int64 --cast zip=string`; "" where none was guessed.

    Of very many columns the first ones are told.
    """
    fields = [field for field in reading.schema if field.name in reading.guessed]
    more = f" and {len(fields) - _COLUMNS_TOLD} more" if len(fields) > _COLUMNS_TOLD else ""
    told = " ".join(f"--cast '{field.name}={show_type(field.type)}'" for field in fields[:_COLUMNS_TOLD])
    return told + more


def _retyped_csv(reading: Reading, name: str, dtype: pa.DataType) -> Reading:
    if _is_made_of_text(dtype):
        return _with_type(reading, name, pa.string())
    return _with_type(reading, name, dtype) if _is_parsed(dtype) else reading


def _retyped_json(reading: Reading, name: str, dtype: pa.DataType) -> Reading:
    """Another type for a field, where it is read right away; the others are cast from what was guessed."""
    number = name in reading.numbers
    if number and pa.types.is_string(dtype):
        return replace(_with_type(reading, name, dtype), numbers_as_text=reading.numbers_as_text | {name})
    if number and (pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)):
        fits = _is_parsed(dtype)
        without = replace(reading, numbers_as_text=reading.numbers_as_text - {name})
        return _with_type(without, name, dtype) if fits else reading
    times = pa.types.is_timestamp(dtype) or pa.types.is_date(dtype) or pa.types.is_string(dtype)
    old = reading.schema.field(name).type
    if not number and times and (pa.types.is_string(old) or pa.types.is_temporal(old)):
        return _with_type(reading, name, dtype)
    if pa.types.is_nested(dtype):  # what numbers in it are rounded to is said
        return replace(reading, guessed=reading.guessed - {name})
    return reading


def _with_type(reading: Reading, name: str, dtype: pa.DataType) -> Reading:
    at = reading.schema.get_field_index(name)
    schema = reading.schema.set(at, reading.schema.field(at).with_type(dtype))
    return replace(reading, schema=schema, guessed=reading.guessed - {name})


def _is_parsed(dtype: pa.DataType) -> bool:
    """Whether text is parsed to it right away; other types are cast from what was guessed."""
    odd = (pa.types.is_nested, pa.types.is_dictionary, pa.types.is_float16, pa.types.is_duration, pa.types.is_null)
    return not any(is_odd(dtype) for is_odd in odd)


def _is_made_of_text(dtype: pa.DataType) -> bool:
    """Whether text is cast to it, as it is written."""
    return pa.types.is_dictionary(dtype) and not pa.types.is_nested(dtype.value_type)


def _or_text(dtype: pa.DataType) -> pa.DataType:
    """The type of a column without a value is not known yet: text, which loses none that come later."""
    return pa.string() if pa.types.is_null(dtype) else dtype


def _json_schema(one: Inspected) -> pa.Schema:
    return json_schema(one.evidence or Evidence())
