"""Arguments of the API as jobs take them: what is left out keeps the job's own default."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from lance_namespace.errors import InvalidInputError

from tiltyard.lake.errors import translate
from tiltyard.lake.functions import Function, function_name
from tiltyard.pipeline.functions.call_options import CallOptions
from tiltyard.pipeline.jobs import split_names
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.sources.types import parse_type, type_name
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE
from tiltyard.pipeline.writing.options import WriteOptions, parse_function
from tiltyard.pipeline.writing.quality_checks import parse_check
from tiltyard.pipeline.writing.target_table import WriteMode

if TYPE_CHECKING:
    import pyarrow as pa

Names: TypeAlias = "str | Sequence[str]"
"""Columns: a list of names, or a text with commas between them."""

DataType: TypeAlias = "str | pa.DataType"
"""A type of a column: pyarrow's, or its name (`int32`, `float32[128]`)."""

FILE_OPTIONS = ("format", "split", "delimiter", "schema", "partitions", "null_value", "multiline", "task_mb")


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


def check_whole_number(value: object, argument: str) -> None:
    """Raise InvalidInputError for what is not a whole number; None is one that is left out."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidInputError(f"{argument} is {value!r}: it has to be a whole number, not {type(value).__name__}.")


def present(**values: Any) -> dict[str, Any]:
    """Return the arguments that are not None; paths and mappings as JSON has them."""
    plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in values.items()}
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items() if value is not None
    }


def write_arguments(
    *,
    select: Names | None,
    rename: Mapping[str, str] | None,
    cast: Mapping[str, DataType] | None,
    null: Names | None,
    udf: Function | None,
    rejects: str | os.PathLike[str] | None,
    null_value: Names | None,
    **values: Any,
) -> dict[str, Any]:
    """Return the arguments that `ingest` and `upsert` have in common. Raises InvalidInputError."""
    return present(
        select=list_names(select, "select"),
        rename=rename,
        cast=None if cast is None else {name: name_type(value) for name, value in cast.items()},
        null=list_names(null, "null"),
        udf=None if udf is None else function_name(udf, "udf"),
        rejects=rejects,
        null_value=list_texts(null_value, "null_value"),
        **values,
    )


def write_options(arguments: Mapping[str, Any], kind: str) -> WriteOptions:
    """Return how rows that are no files are written, of which `kind` says what they are.

    Raises InvalidInputError for an option that only files have, RefusedError for one that cannot be.
    """
    if of_files := [name for name in FILE_OPTIONS if name in arguments]:
        raise InvalidInputError(f"{of_files[0]} is an option of files, and source is a {kind}: leave it out.")
    types = {name: parse_type(text) for name, text in arguments.get("cast", {}).items()}
    rows_per_file = arguments.get("rows_per_file", ROWS_PER_FILE)
    if rows_per_file < 1:
        raise InvalidInputError(f"rows_per_file is {rows_per_file}: it is at least 1.")
    rejects = arguments.get("rejects")
    return WriteOptions(
        WriteMode(arguments.get("mode", "append")),
        ColumnSelection(
            tuple(arguments.get("select", ())), arguments.get("rename", {}), types, tuple(arguments.get("null", ()))
        ),
        parse_function(arguments.get("udf"), rejects, pick_call_options(arguments)),
        tuple(parse_check(text) for text in arguments.get("checks", ())),
        absolute_path(rejects) if rejects else None,
        rows_per_file,
    )


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


def pick_call_options(arguments: Mapping[str, Any]) -> CallOptions:
    """Return those of a job's arguments that say how a function is called."""
    chosen = {name: arguments[name] for name in CallOptions.__annotations__ if name in arguments}
    return cast("CallOptions", chosen)


def index_parameters(values: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the parameters of an index as the job takes them; None for none."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()} or None
