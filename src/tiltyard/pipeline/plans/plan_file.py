"""Read a pipeline's file: YAML, or Python that returns a plan. Errors name the file, the line, and the key."""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.plans.model import Plan, PlanError, parse_plan
from tiltyard.pipeline.sources.filesystem import absolute_path, is_remote

if TYPE_CHECKING:
    import yaml

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
    try:
        import yaml  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise InvalidInputError("PyYAML is not installed: pip install 'tiltyard[spark]'.") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_duplicate_keys(node)
        content = yaml.safe_load(text)
        return parse_plan(_resolve_paths(_substitute(content, values, ()), file.parent))
    except PlanError as error:
        raise InvalidInputError(f"{file}, line {_error_line(node, error)}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidInputError(f"{file}{line}: this is not YAML: {getattr(error, 'problem', error)}.") from error


def _check_duplicate_keys(node: yaml.Node | None, path: tuple[str | int, ...] = ()) -> None:
    """Raise PlanError for a duplicate key, of which YAML would take the last one."""
    if node is None or isinstance(node.value, str):
        return
    keys = set()
    for number, child in enumerate(node.value):
        if not isinstance(child, tuple):
            _check_duplicate_keys(child, (*path, number))
            continue
        key = str(child[0].value)
        if key in keys:
            raise PlanError((*path, key), "this key occurs twice.")
        keys.add(key)
        _check_duplicate_keys(child[1], (*path, key))


def _error_line(node: yaml.Node | None, error: PlanError) -> int:
    """Return the line of the key that an error is about, or of the mapping around it."""
    line = 1
    current = node
    for part in [*error.path, *error.sentence.split("`")[1::2]]:
        if current is None or isinstance(current.value, str):
            break
        if isinstance(part, int):
            current = current.value[part]
            line = current.start_mark.line + 1
            continue
        pairs = [pair for pair in current.value if isinstance(pair, tuple) and str(pair[0].value) == part]
        if not pairs:
            break
        line, current = pairs[-1][0].start_mark.line + 1, pairs[-1][1]
    return line


def _substitute(content: Any, values: Mapping[str, str], path: Sequence[str | int]) -> Any:
    """Replace `${NAME}` by its value in all texts. Raises PlanError for one without a value."""
    if isinstance(content, str):
        try:
            return Template(content).substitute(values)
        except (KeyError, ValueError) as error:
            sentence = f"give ${{…}} a value with --set NAME=VALUE, or write $$ for a dollar sign ({error})"
            raise PlanError(path, sentence) from error
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
