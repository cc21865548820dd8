"""The options of files, declared once: commands, methods, plans, forms, streams and tasks have them from here.

An option of CSV is a field of `CsvOptions`, and what `csv_records.CsvDialect` makes of it; one of other files is a
field of `FileOptions`, and what `discovery.find_source` makes of it. An option that is left out is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from tiltyard.model.refusals import RefusedError

SPARK_FORMATS = ("orc", "avro")
"""Formats that Spark reads, as DataFrames."""
_DEFAULTS: Mapping[str, Any] = {"schema": "union", "partitions": "hive", "task_mb": 256}
"""Defaults that earlier releases recorded in the arguments of jobs: to name one is to leave the option out."""


class CsvOptions(TypedDict, total=False):
    """How CSV is written."""

    delimiter: Annotated[str | None, "The separator of CSV values."]
    escape: Annotated[
        str | None,
        "The character (a backslash, say) behind which a delimiter, a quote, a line break or itself is text.",
    ]
    null_value: Annotated[list[str] | None, "An unquoted CSV value that is null (NA), besides the empty one."]


class FileOptions(CsvOptions, total=False):
    """How files are found and read."""

    format: Annotated[
        Literal["parquet", "arrow", "csv", "json", "lance", "images", "orc", "avro"] | None,
        "The files' format, if their names do not tell it.",
    ]
    split: Annotated[str | None, "Only this split of a data set (train, test, …)."]
    schema: Annotated[
        Literal["union", "first", "strict"] | None,
        "For files that differ: all columns, in types that hold all values (union, the default), the columns of the "
        "first file, or an error for any difference (strict).",
    ]
    partitions: Annotated[
        str | None,
        "Partition columns in folder names: hive (year=2013/…, the default), off, or the columns (year/month).",
    ]
    multiline: Annotated[
        bool | None,
        "One task reads each CSV file, and reads it once; values with line breaks are read without it, too.",
    ]
    task_mb: Annotated[int | None, "How much of the source a task reads, in MiB [default: 256]."]


Options = TypeVar("Options")


def pick_options(kind: type[Options], arguments: Mapping[str, Any]) -> Options:
    """Return the options of a kind, which is a TypedDict, among arguments."""
    return {name: arguments[name] for name in kind.__annotations__ if name in arguments}  # type: ignore[return-value]  # by its names


def given_options(arguments: Mapping[str, Any], kind: type = FileOptions) -> list[str]:
    """Return the names of the options of a kind that are set, and not to their defaults."""
    return [
        name
        for name in kind.__annotations__
        if arguments.get(name) not in (None, "", False, [], (), _DEFAULTS.get(name))
    ]


def check_csv_only(options: Mapping[str, Any], path: str, format_: str) -> None:
    """Raise RefusedError for an option of CSV, of files that are none."""
    if format_ != "csv" and (given := given_options(options, CsvOptions)):
        flag = f"--{given[0].replace('_', '-')}"
        raise RefusedError(f"{flag} is for CSV files, and {path} is {format_}: leave it out.")
