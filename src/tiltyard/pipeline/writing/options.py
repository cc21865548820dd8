"""The options of jobs that write rows, declared once: commands, methods, plans and forms have them from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from tiltyard.contracts.checks import QualityCheck, parse_check
from tiltyard.functions.ready_made import is_ready_made
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.type_names import parse_type
from tiltyard.pipeline.functions.call_options import CallOptions, make_policy
from tiltyard.pipeline.functions.calls import GuardedFunction
from tiltyard.pipeline.functions.user_functions import parse_user_function
from tiltyard.pipeline.jobs import Alias, ColumnNames
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.file_options import CsvOptions, FileOptions, pick_options
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE
from tiltyard.pipeline.writing.target_table import WriteMode


class CheckOptions(TypedDict, total=False):
    """What rows have to be."""

    checks: Annotated[
        list[str] | None,
        "A check before publishing: 'rows >= 9', 'not_null(a)', 'between(a, 0, 1)', 'unique(a)', 'matches(a, [A-Z]+)', "
        "'in_set(a, x, y)', 'foreign_key(a, other.b)', 'freshness(a, 2d)', 'distribution(a, 0.1)'; 'warn: …' "
        "publishes all the same.",
        Alias("check"),
    ]


class RowOptions(CheckOptions, total=False):
    """How rows become those of a table, whatever they come from; what is left out is None."""

    select: Annotated[list[str] | None, "Only these columns of the source: a,b.", ColumnNames()]
    rename: Annotated[dict[str, str] | None, "The new name of a column of the source."]
    cast: Annotated[dict[str, str] | None, "The type of a column: int64, float32[128], decimal(10, 2), …"]
    null: Annotated[list[str] | None, "Columns of the table that the source lacks; they become null.", ColumnNames()]
    udf: Annotated[str | None, "A function RecordBatch → RecordBatch, as module:function or file.py:function."]
    rejects: Annotated[str | None, "A folder for rows that do not fit; without one, such a row fails the job."]
    rows_per_file: Annotated[int | None, f"Maximal rows of a fragment [default: {ROWS_PER_FILE}]."]


class StreamRowOptions(CsvOptions, CheckOptions, total=False):
    """The options of streams that they have in common with other jobs that write rows."""


class WriteJobOptions(FileOptions, RowOptions, CallOptions, total=False):
    """The options of jobs that write the rows of files."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows are selected, transformed, checked and written; with `on`, the rows with their keys are replaced.

    With `must_exist` a key that the table lacks is refused.
    """

    mode: WriteMode = WriteMode.CREATE
    columns: ColumnSelection = field(default_factory=ColumnSelection)
    udf: GuardedFunction | None = None
    checks: tuple[QualityCheck, ...] = ()
    rejects: str | None = None
    rows_per_file: int = ROWS_PER_FILE
    on: tuple[str, ...] = ()
    must_exist: bool = False

    @classmethod
    def of(
        cls, arguments: Mapping[str, Any], mode: str, on: Sequence[str] | None = None, *, must_exist: bool = False
    ) -> WriteOptions:
        """Parse the arguments of a job; `on` is the key of an upsert, `must_exist` as above. Raises RefusedError."""
        if on is not None and not on:
            raise RefusedError("The key (on): name at least one column.")
        rows_per_file, rejects = arguments.get("rows_per_file"), arguments.get("rejects")
        if rows_per_file is not None and rows_per_file < 1:
            raise RefusedError(f"--rows-per-file is {rows_per_file}: it is at least 1.")
        types = {name: parse_type(text) for name, text in (arguments.get("cast") or {}).items()}
        return cls(
            WriteMode(mode),
            ColumnSelection(
                tuple(arguments.get("select") or ()),
                arguments.get("rename") or {},
                types,
                tuple(arguments.get("null") or ()),
            ),
            _parse_function(arguments.get("udf"), rejects, pick_options(CallOptions, arguments)),
            tuple(parse_check(text) for text in arguments.get("checks") or ()),
            absolute_path(rejects) if rejects else None,
            rows_per_file or ROWS_PER_FILE,
            tuple(on or ()),
            must_exist,
        )


def _parse_function(udf: str | None, rejects: str | None, options: CallOptions) -> GuardedFunction | None:
    """Return the function of a job that writes rows; None for none. Raises RefusedError.

    Rows that are parked are written to the folder `rejects`: they are in no table yet.
    """
    policy = make_policy(options, has_function=udf is not None, rejects=rejects)
    if policy.on_error == "park" and rejects is None:
        raise RefusedError("on_error is park: name a folder for such rows (--rejects).")
    if udf is not None and is_ready_made(udf):
        raise RefusedError(
            f"udf is a function of rows here, and '{udf[:200]}' has the form of a ready-made one, of a column: add a "
            "column that it computes, or call it in a function of your own (module:function, file.py:function)."
        )
    return None if udf is None else GuardedFunction(parse_user_function(udf), policy)
