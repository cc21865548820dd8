"""Arguments of the API as jobs take them: what is left out keeps the job's own default."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.lake.errors import translate
from tiltyard.lake.functions import Function, function_name
from tiltyard.model.schemas.arrow_json import to_json
from tiltyard.model.schemas.type_names import parse_type, type_name
from tiltyard.pipeline.functions.call_options import CallOptions
from tiltyard.pipeline.jobs import split_names
from tiltyard.pipeline.sources.file_options import FileOptions, given_options, pick_options
from tiltyard.pipeline.writing.options import WriteJobOptions, WriteOptions

Names: TypeAlias = "str | Sequence[str]"
"""Columns: a list of names, or a text with commas between them."""

DataType: TypeAlias = "str | pa.DataType"
"""A type of a column: pyarrow's, or its name (`int32`, `float32[128]`)."""


def list_names(value: Names | None, argument: str) -> list[str] | None:
    """Return names as a list; None for None. Raises InvalidInputError."""
    if value is None:
        return None
    names = split_names(value) if isinstance(value, str) else list(value)
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"{argument} is a list of texts, or one text with commas.")
    return names


def list_texts(value: Names | None, argument: str) -> list[str] | None:
    """Return texts as a list, a single one as a list of one; None for None. Raises InvalidInputError."""
    return [value] if isinstance(value, str) else list_names(value, argument)


def name_type(value: DataType | None) -> str | None:
    """Return a type by its name; None for None. Raises InvalidInputError."""
    with translate():
        return None if value is None else type_name(value)


def json_type(value: DataType) -> dict[str, Any]:
    """Return a type as requests have it. Raises InvalidInputError."""
    with translate():
        kind = parse_type(value) if isinstance(value, str) else value
        schema: dict[str, Any] = msgspec.to_builtins(to_json(pa.schema([pa.field("x", kind)])))
    return dict(schema["fields"][0]["type"])


def check_whole_number(value: object, argument: str) -> None:
    """Raise InvalidInputError for what is not a whole number; None is one that is left out."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidInputError(f"{argument} is {value!r}: it has to be a whole number, not {type(value).__name__}.")


def check_moment(value: object, argument: str) -> None:
    """Raise InvalidInputError for what is no time with a zone."""
    if not isinstance(value, datetime):
        raise InvalidInputError(f"{argument} is {value!r}: give a time, as datetime.now(UTC) is.")
    if value.tzinfo is None:
        raise InvalidInputError(f"{argument} has no zone, in which it would be another one: datetime.now(UTC) has one.")


def present(**values: Any) -> dict[str, Any]:
    """Return the arguments that are not None; paths and mappings as JSON has them."""
    plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in values.items()}
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items() if value is not None
    }


class RowOptions(FileOptions, CallOptions, total=False):
    """How rows become those of a table: the options of `tiltyard job ingest`, in Python's own types."""

    select: Names | None
    rename: Mapping[str, str] | None
    cast: Mapping[str, DataType] | None
    null: Names | None
    udf: Function | None
    rejects: str | os.PathLike[str] | None
    checks: Names | None
    rows_per_file: int | None


def write_arguments(options: RowOptions) -> dict[str, Any]:
    """Return options as jobs take them. Raises InvalidInputError, TypeError for another argument."""
    values: dict[str, Any] = dict(options)
    if unknown := values.keys() - WriteJobOptions.__annotations__.keys():
        raise TypeError(f"There is no argument '{min(unknown)}'.")
    call = call_arguments(pick_options(CallOptions, values))
    for name in ("select", "null"):
        values[name] = list_names(values.get(name), name)
    for name in ("checks", "null_value"):
        values[name] = list_texts(values.get(name), name)
    if (types := values.get("cast")) is not None:
        values["cast"] = {name: name_type(value) for name, value in types.items()}
    if values.get("udf") is not None:
        values["udf"] = function_name(values["udf"], "udf")
    return {**present(**values), **call}


def write_options(
    arguments: Mapping[str, Any], kind: str, mode: str, on: Sequence[str] | None = None, *, must_exist: bool = False
) -> WriteOptions:
    """Return how rows that are no files are written, of which `kind` says what they are.

    Raises InvalidInputError for an option that only files have, RefusedError for one that cannot be.
    """
    if of_files := given_options(arguments):
        raise InvalidInputError(f"{of_files[0]} is an option of files, and source is a {kind}: leave it out.")
    return WriteOptions.of(arguments, mode, on, must_exist=must_exist)


def call_arguments(options: CallOptions) -> dict[str, Any]:
    """Return how a function is called as jobs take it. Raises InvalidInputError, TypeError for another argument."""
    values: dict[str, Any] = dict(options)
    if unknown := values.keys() - CallOptions.__annotations__.keys():
        raise TypeError(f"There is no argument '{min(unknown)}'.")
    for name in ("retry_on", "requirements"):
        values[name] = list_texts(values.get(name), name)
    if values.get("resources"):
        values["resources"] = {name: str(amount) for name, amount in values["resources"].items()}
    return present(**values)


def index_parameters(values: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the parameters of an index as the job takes them; None for none."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()} or None
