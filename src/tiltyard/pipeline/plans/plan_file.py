"""The plan of a pipeline, as its file declares it: tables in order, each from files or from SQL, and the tag.

The file is YAML, or Python that returns a plan. Errors name the file, the line, and the key.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Literal, get_type_hints

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.ids import parse_id
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.type_names import type_name
from tiltyard.model.text.yaml_text import ContentError, convert_content, parse_yaml
from tiltyard.pipeline.indexes.job import make_spec, with_metric
from tiltyard.pipeline.indexes.tasks import IndexSpec
from tiltyard.pipeline.sources.file_options import given_options
from tiltyard.pipeline.sources.filesystem import absolute_path, is_remote
from tiltyard.pipeline.writing.options import WriteJobOptions, WriteOptions


class IndexPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An index of a table, with the arguments of the job `index`; an existing index of that name is rebuilt."""

    column: str
    type: str
    name: str | None = None
    metric: str | None = None
    parameters: dict[str, Any] = {}

    def spec(self) -> IndexSpec:
        """Return the specification of the index. Raises InvalidInputError."""
        return make_spec(self.column, self.type, self.name, with_metric(self.parameters, self.metric))


def _option_fields() -> list[tuple[str, Any, Any]]:
    """Return the options of jobs that write rows, as fields of a table; what is left out is None."""
    hints = get_type_hints(WriteJobOptions)
    return [(name, hints[name], None) for name in WriteJobOptions.__annotations__]


_RowOptions: Any = msgspec.defstruct("_RowOptions", _option_fields(), frozen=True)


class TablePlan(_RowOptions, frozen=True, forbid_unknown_fields=True, omit_defaults=True):  # type: ignore[call-arg,misc]  # made above
    """A table and how its rows are produced; the names are those of the options of `ingest`.

    Its rows come from `files`, or from `sql` over what the plan `reads` and the tables before it: of those, the query
    sees the rows that this run writes.
    """

    files: str | None = None
    sql: str | None = None
    mode: Literal["create", "append", "overwrite"] = "create"
    indexes: list[IndexPlan] = msgspec.field(default_factory=list)

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of its rows."""
        return {name: getattr(self, name) for name in WriteJobOptions.__annotations__}

    def write_options(self) -> WriteOptions:
        """Return how the rows are transformed and written. Raises RefusedError, InvalidInputError."""
        return WriteOptions.of(self.options, self.mode)


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pipeline: `tables` by id, in the order in which they are written; `reads` are views by name."""

    tables: dict[str, TablePlan]
    reads: dict[str, str] = {}
    tag: str | None = None

    @property
    def functions(self) -> list[str]:
        """Return the users' functions that it calls."""
        return [table.udf for table in self.tables.values() if table.udf]


def parse_plan(content: Any) -> Plan:
    """Parse a plan from the content of a file, or a job's argument. Raises ContentError."""
    if not isinstance(content, Mapping):
        raise ContentError((), "A pipeline is a mapping with the key 'tables'.")
    tables = content.get("tables")
    if not isinstance(tables, Mapping) or not tables:
        raise ContentError(("tables",), "name the tables that are written, at least one, each with what it is made of.")
    parsed = {str(name): _parse_table(table, ("tables", str(name))) for name, table in tables.items()}
    for name, table in parsed.items():
        _check_table(name, table)
    plan: Plan = convert_content({**content, "tables": {}}, Plan, ())
    if duplicates := parsed.keys() & plan.reads.keys():
        raise ContentError(("reads", min(duplicates)), "a table of this pipeline has that name.")
    return msgspec.structs.replace(plan, tables=parsed)


_ALIASES = {"check": "checks"}
"""Earlier names of keys of a table."""


def _parse_table(content: Any, path: tuple[str | int, ...]) -> TablePlan:
    if isinstance(content, Mapping):
        for old, new in _ALIASES.items():
            if old in content and new in content:
                raise ContentError((*path, old), f"'{old}' is another name of '{new}': leave one out.")
        content = {_ALIASES.get(name, name): value for name, value in content.items()}
        if isinstance(casts := content.get("cast"), Mapping):  # a plan in Python may have Arrow's own types
            types = {
                name: type_name(value) if isinstance(value, pa.DataType) else value for name, value in casts.items()
            }
            content["cast"] = types
    table: TablePlan = convert_content(content, TablePlan, path)
    return table


def _check_table(name: str, table: TablePlan) -> None:
    """Raise ContentError for errors that the model's types do not catch."""
    path: tuple[str | int, ...] = ("tables", name)
    if (table.files is None) == (table.sql is None):
        raise ContentError(path, "say where its rows come from, either 'files' or 'sql'.")
    files_only = given_options(table.options)
    if table.sql is not None and files_only:
        raise ContentError(path, f"'{files_only[0]}' is of files, not of SQL.")
    try:
        parse_id(name)
        table.write_options()
        for number, index in enumerate(table.indexes):
            path = ("tables", name, "indexes", number)
            index.spec()
    except (RefusedError, InvalidInputError) as error:
        raise ContentError(path, str(error)) from error


PLAN_VARIABLE = "pipeline"
"""The name of the plan in a Python file, or of the function that returns it."""


def read_plan(file: Path, values: Mapping[str, str]) -> Plan:
    """Read a plan, with `values` for `${NAME}`; relative paths in it are relative to the file.

    A Python file is executed, as the caller's own. Raises InvalidInputError.
    """
    try:
        text = file.read_text()
    except OSError as error:
        raise InvalidInputError(f"Cannot read {file}: {error.strerror}.") from error
    return _from_python(file, values) if file.suffix == ".py" else _from_yaml(file, text, values)


def _from_python(file: Path, values: Mapping[str, str]) -> Plan:
    """Return the plan of a Python file: `pipeline = {…}`, a Plan, or a function of the values."""
    plan = runpy.run_path(str(file)).get(PLAN_VARIABLE)
    if plan is None:
        raise InvalidInputError(
            f"{file} defines no '{PLAN_VARIABLE}': a mapping as in YAML, or a function that returns one."
        )
    content = plan(**values) if callable(plan) else plan
    return parse_plan(_resolve_paths(msgspec.to_builtins(content), file.parent))


def _from_yaml(file: Path, text: str, values: Mapping[str, str]) -> Plan:
    document = parse_yaml(str(file), text)
    with document.locating_errors():
        return parse_plan(_resolve_paths(_substitute(document.content, values, ()), file.parent))


def _substitute(content: Any, values: Mapping[str, str], path: Sequence[str | int]) -> Any:
    """Replace `${NAME}` by its value in all texts. Raises ContentError for one without a value."""
    if isinstance(content, str):
        try:
            return Template(content).substitute(values)
        except (KeyError, ValueError) as error:
            sentence = f"give ${{…}} a value with --set NAME=VALUE, or write $$ for a dollar sign ({error})"
            raise ContentError(path, sentence) from error
    if isinstance(content, Mapping):
        return {name: _substitute(value, values, (*path, str(name))) for name, value in content.items()}
    if isinstance(content, list):
        return [_substitute(value, values, (*path, number)) for number, value in enumerate(content)]
    return content


def _resolve_paths(content: Any, folder: Path) -> Any:
    """Make relative paths of a plan absolute, for processes elsewhere. Content of another form stays unchanged."""

    def resolve_path(path: str) -> str:
        return path if is_remote(path) else absolute_path(str(folder / path))

    def resolve_table(fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        paths = {key: resolve_path(fields[key]) for key in ("files", "rejects") if isinstance(fields.get(key), str)}
        udf = fields.get("udf")
        code = {"udf": resolve_path(udf)} if isinstance(udf, str) and udf.rpartition(":")[0].endswith(".py") else {}
        return {**fields, **paths, **code}

    if not isinstance(content, Mapping) or not isinstance(content.get("tables"), Mapping):
        return content
    return {**content, "tables": {name: resolve_table(fields) for name, fields in content["tables"].items()}}


def describe_plan(plan: Plan) -> list[str]:
    """Return what a pipeline does, in lines."""
    lines = [f"reads {source} as {name}" for name, source in plan.reads.items()]
    for name, table in plan.tables.items():
        origin = f"files {table.files}" if table.files else "SQL"
        code = f", through {table.udf}" if table.udf else ""
        lines.append(f"{table.mode} {name} from {origin}{code}")
        lines += [f"  index {index.spec().name}: {index.spec().kind} of {index.column}" for index in table.indexes]
    ending = f", tagged {plan.tag}" if plan.tag else ""
    return [*lines, f"publish {', '.join(plan.tables)} at once{ending}"]
