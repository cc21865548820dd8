"""What a pipeline's file says: its tables in their order, each from files or from SQL, and the tag."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.pipeline.indexes.job import make_spec
from tiltyard.pipeline.indexes.tasks import IndexSpec
from tiltyard.pipeline.sources.discovery import SourceOptions
from tiltyard.pipeline.sources.partitions import HIVE
from tiltyard.pipeline.sources.readers import Format
from tiltyard.pipeline.sources.schema_merge import SchemaMode
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.type_names import parse_type
from tiltyard.pipeline.user_functions import parse_user_function
from tiltyard.pipeline.writing.casts import ColumnSelection
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.quality_checks import parse_check
from tiltyard.pipeline.writing.target_table import WriteMode

Struct = TypeVar("Struct", bound=msgspec.Struct)

_PART = re.compile(r"\.(\w+)|\[(\d+)\]")


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An index of a table, as the job `index` takes it; one of that name is built anew."""

    column: str
    type: str
    name: str | None = None
    parameters: dict[str, Any] = {}

    def order(self) -> IndexSpec:
        """What is built. Raises InvalidInputError."""
        return make_spec(self.column, self.type, self.name, self.parameters)


class TablePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table and what becomes of its rows on their way; the names are those of the options of `ingest`.

    Its rows come from `files`, or from `sql` over what the plan `reads` and the tables above it: of those, it sees the
    rows that this run writes.
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
    indexes: list[Index] = []

    def asked(self) -> WriteOptions:
        """What becomes of the rows. Raises RefusedError, InvalidInputError."""
        return WriteOptions(
            WriteMode(self.mode),
            ColumnSelection(tuple(self.select), self.rename, self._types(), tuple(self.null)),
            parse_user_function(self.udf) if self.udf else None,
            tuple(parse_check(text) for text in self.check),
            self.rejects,
            self.rows_per_file,
        )

    def wanted(self, storage: Mapping[str, str]) -> SourceOptions:
        """The files that it is made of. Raises InvalidInputError."""
        assert self.files is not None
        old_names = {new: old for old, new in self.rename.items()}
        types = {old_names.get(name, name): dtype for name, dtype in self._types().items()}
        kind = Format(self.format) if self.format else None
        return SourceOptions(
            self.files,
            kind,
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
_OF_FILES = ("format", "split", "delimiter", "schema", "partitions", "null_value", "multiline")


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pipeline: `tables` by their ids, in the order in which they are written; `reads` are views by their names."""

    tables: dict[str, TablePlan]
    reads: dict[str, str] = {}
    tag: str | None = None

    @property
    def functions(self) -> list[str]:
        """The code that it calls."""
        return [table.udf for table in self.tables.values() if table.udf]


class PlanError(InvalidInputError):
    """A plan that cannot be carried out: `place` are the keys and positions that lead to what is wrong."""

    def __init__(self, place: Sequence[str | int], sentence: str) -> None:
        super().__init__(f"{shown(place)}: {sentence}" if place else sentence)
        self.place = tuple(place)
        self.sentence = sentence


def shown(place: Sequence[str | int]) -> str:
    """A place as it is written: `tables.films.indexes[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def plan_of(told: Any) -> Plan:
    """A plan from what a file or a job holds. Raises PlanError."""
    if not isinstance(told, Mapping):
        raise PlanError((), "A pipeline is a mapping with the key 'tables'.")
    tables = told.get("tables")
    if not isinstance(tables, Mapping) or not tables:
        raise PlanError(("tables",), "name the tables that are written, at least one, each with what it is made of.")
    made = {str(name): _converted(table, TablePlan, ("tables", str(name))) for name, table in tables.items()}
    for name, table in made.items():
        _check_table(name, table)
    rest = _converted({**told, "tables": {}}, Plan, ())
    if twice := made.keys() & rest.reads.keys():
        raise PlanError(("reads", min(twice)), "a table of this pipeline has that name.")
    return msgspec.structs.replace(rest, tables=made)


def _converted(told: Any, kind: type[Struct], place: tuple[str | int, ...]) -> Struct:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        sentence, _, path = str(error).partition(" - at `")
        inner = [int(number) if number else name for name, number in _PART.findall(path)]
        raise PlanError((*place, *inner), sentence) from error


def _check_table(name: str, table: TablePlan) -> None:
    """Raise PlanError for what a type cannot say."""
    place: tuple[str | int, ...] = ("tables", name)
    if (table.files is None) == (table.sql is None):
        raise PlanError(place, "say where its rows come from, either 'files' or 'sql'.")
    files_only = [name for name in _OF_FILES if getattr(table, name) != getattr(_NO_OPTIONS, name)]
    if table.sql is not None and files_only:
        raise PlanError(place, f"'{files_only[0]}' is of files, not of SQL.")
    try:
        parse_id(name, DEFAULT_DELIMITER)
        table.asked()
        for number, index in enumerate(table.indexes):
            place = ("tables", name, "indexes", number)
            index.order()
    except (RefusedError, InvalidInputError) as error:
        raise PlanError(place, str(error)) from error
