"""The plan of a pipeline, as its file declares it: tables in order, each from files or from SQL, and the tag."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.pipeline.indexes.job import make_spec
from tiltyard.pipeline.indexes.tasks import IndexSpec
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.discovery import SourceOptions
from tiltyard.pipeline.sources.partitions import HIVE
from tiltyard.pipeline.sources.readers import Format
from tiltyard.pipeline.sources.schema_merge import SchemaMode
from tiltyard.pipeline.sources.type_syntax import parse_type
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.user_functions import parse_user_function
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.quality_checks import parse_check
from tiltyard.pipeline.writing.target_table import WriteMode

Struct = TypeVar("Struct", bound=msgspec.Struct)

_PATH_PART = re.compile(r"\.(\w+)|\[(\d+)\]")


class IndexPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An index of a table, with the arguments of the job `index`; an existing index of that name is rebuilt."""

    column: str
    type: str
    name: str | None = None
    parameters: dict[str, Any] = {}

    def spec(self) -> IndexSpec:
        """Return the specification of the index. Raises InvalidInputError."""
        return make_spec(self.column, self.type, self.name, self.parameters)


class TablePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table and how its rows are produced; the names are those of the options of `ingest`.

    Its rows come from `files`, or from `sql` over what the plan `reads` and the tables before it: of those, the query
    sees the rows that this run writes.
    """

    files: str | None = None
    sql: str | None = None
    mode: Literal["create", "append", "overwrite"] = "create"
    format: Literal["parquet", "arrow", "csv", "json", "lance", "images"] | None = None
    split: str | None = None
    delimiter: str | None = None
    schema: Literal["union", "first", "strict"] = "union"
    partitions: str = HIVE
    null_value: list[str] = []
    multiline: bool = False
    select: list[str] = []
    rename: dict[str, str] = {}
    cast: dict[str, str] = {}
    null: list[str] = []
    udf: str | None = None
    rejects: str | None = None
    check: list[str] = []
    rows_per_file: int = ROWS_PER_FILE
    indexes: list[IndexPlan] = []

    def write_options(self) -> WriteOptions:
        """Return how the rows are transformed and written. Raises RefusedError, InvalidInputError."""
        return WriteOptions(
            WriteMode(self.mode),
            ColumnSelection(tuple(self.select), self.rename, self._types(), tuple(self.null)),
            parse_user_function(self.udf) if self.udf else None,
            tuple(parse_check(text) for text in self.check),
            self.rejects,
            self.rows_per_file,
        )

    def source_options(self, storage: Mapping[str, str]) -> SourceOptions:
        """Return the options of its source files. Raises InvalidInputError."""
        assert self.files is not None
        old_names = {new: old for old, new in self.rename.items()}
        types = {old_names.get(name, name): dtype for name, dtype in self._types().items()}
        format_ = Format(self.format) if self.format else None
        return SourceOptions(
            self.files,
            format_,
            self.split,
            self.delimiter,
            types,
            dict(storage),
            SchemaMode(self.schema),
            self.partitions,
            (*self.select, *self.rename) if self.select else (),
            tuple(self.null_value),
            self.multiline,
        )

    def _types(self) -> dict[str, Any]:
        return {name: parse_type(text) for name, text in self.cast.items()}


_NO_OPTIONS = TablePlan()
_FILE_OPTIONS = ("format", "split", "delimiter", "schema", "partitions", "null_value", "multiline")


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pipeline: `tables` by id, in the order in which they are written; `reads` are views by name."""

    tables: dict[str, TablePlan]
    reads: dict[str, str] = {}
    tag: str | None = None

    @property
    def functions(self) -> list[str]:
        """Return the users' functions that it calls."""
        return [table.udf for table in self.tables.values() if table.udf]


class PlanError(InvalidInputError):
    """A plan that cannot be executed: `path` holds the keys and positions that lead to the error."""

    def __init__(self, path: Sequence[str | int], sentence: str) -> None:
        super().__init__(f"{format_path(path)}: {sentence}" if path else sentence)
        self.path = tuple(path)
        self.sentence = sentence


def format_path(path: Sequence[str | int]) -> str:
    """Format a path: `tables.films.indexes[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def parse_plan(content: Any) -> Plan:
    """Parse a plan from the content of a file, or a job's argument. Raises PlanError."""
    if not isinstance(content, Mapping):
        raise PlanError((), "A pipeline is a mapping with the key 'tables'.")
    tables = content.get("tables")
    if not isinstance(tables, Mapping) or not tables:
        raise PlanError(("tables",), "name the tables that are written, at least one, each with what it is made of.")
    parsed = {str(name): _convert(table, TablePlan, ("tables", str(name))) for name, table in tables.items()}
    for name, table in parsed.items():
        _check_table(name, table)
    plan = _convert({**content, "tables": {}}, Plan, ())
    if duplicates := parsed.keys() & plan.reads.keys():
        raise PlanError(("reads", min(duplicates)), "a table of this pipeline has that name.")
    return msgspec.structs.replace(plan, tables=parsed)


def _convert(content: Any, model: type[Struct], path: tuple[str | int, ...]) -> Struct:
    try:
        return msgspec.convert(content, model)
    except msgspec.ValidationError as error:
        sentence, _, inner_path = str(error).partition(" - at `")
        inner = [int(number) if number else name for name, number in _PATH_PART.findall(inner_path)]
        raise PlanError((*path, *inner), sentence) from error


def _check_table(name: str, table: TablePlan) -> None:
    """Raise PlanError for errors that the model's types do not catch."""
    path: tuple[str | int, ...] = ("tables", name)
    if (table.files is None) == (table.sql is None):
        raise PlanError(path, "say where its rows come from, either 'files' or 'sql'.")
    files_only = [name for name in _FILE_OPTIONS if getattr(table, name) != getattr(_NO_OPTIONS, name)]
    if table.sql is not None and files_only:
        raise PlanError(path, f"'{files_only[0]}' is of files, not of SQL.")
    try:
        parse_id(name, DEFAULT_DELIMITER)
        table.write_options()
        for number, index in enumerate(table.indexes):
            path = ("tables", name, "indexes", number)
            index.spec()
    except (RefusedError, InvalidInputError) as error:
        raise PlanError(path, str(error)) from error
