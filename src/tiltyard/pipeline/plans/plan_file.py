"""A pipeline's file: YAML, or Python that makes a plan. Mistakes are told with the file, the line, and the key."""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.plans.model import Plan, PlanError, plan_of
from tiltyard.pipeline.sources.filesystem import absolute_path, is_remote

if TYPE_CHECKING:
    import yaml

NAME = "pipeline"
"""What a Python file calls its plan, or the function that makes it."""


def read_plan(file: Path, values: Mapping[str, str]) -> Plan:
    """The plan of a file, with `values` in the place of `${NAME}`; relative paths in it are beside the file.

    Python is run, as the caller's own. Raises InvalidInputError.
    """
    try:
        text = file.read_text()
    except OSError as error:
        raise InvalidInputError(f"Cannot read {file}: {error.strerror}.") from error
    return _from_python(file, values) if file.suffix == ".py" else _from_yaml(file, text, values)


def _from_python(file: Path, values: Mapping[str, str]) -> Plan:
    """The plan that a Python file makes: `pipeline = {…}`, a Plan, or a function of the values."""
    found = runpy.run_path(str(file)).get(NAME)
    if found is None:
        raise InvalidInputError(f"{file} makes no '{NAME}': a mapping as in YAML, or a function that gives one.")
    told = found(**values) if callable(found) else found
    return plan_of(_beside(msgspec.to_builtins(told), file.parent))


def _from_yaml(file: Path, text: str, values: Mapping[str, str]) -> Plan:
    try:
        import yaml  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise InvalidInputError("PyYAML is not installed: pip install 'tiltyard[spark]'.") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_twice(node)
        told = yaml.safe_load(text)
        return plan_of(_beside(_filled(told, values, ()), file.parent))
    except PlanError as error:
        raise InvalidInputError(f"{file}, line {_line(node, error)}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidInputError(f"{file}{line}: this is no YAML: {getattr(error, 'problem', error)}.") from error


def _check_twice(node: yaml.Node | None, place: tuple[str | int, ...] = ()) -> None:
    """Raise PlanError for a key that is there twice: YAML would take the last one."""
    if node is None or isinstance(node.value, str):
        return
    seen = set()
    for number, child in enumerate(node.value):
        if not isinstance(child, tuple):
            _check_twice(child, (*place, number))
            continue
        key = str(child[0].value)
        if key in seen:
            raise PlanError((*place, key), "this key is there twice.")
        seen.add(key)
        _check_twice(child[1], (*place, key))


def _line(node: yaml.Node | None, error: PlanError) -> int:
    """The line of the key that an error is about, or of what holds it."""
    line = 1
    found = node
    for part in [*error.place, *error.sentence.split("`")[1::2]]:
        if found is None or isinstance(found.value, str):
            break
        if isinstance(part, int):
            found = found.value[part]
            line = found.start_mark.line + 1
            continue
        pairs = [one for one in found.value if isinstance(one, tuple) and str(one[0].value) == part]
        if not pairs:
            break
        line, found = pairs[-1][0].start_mark.line + 1, pairs[-1][1]
    return line


def _filled(told: Any, values: Mapping[str, str], place: Sequence[str | int]) -> Any:
    """All texts with values in the place of `${NAME}`. Raises PlanError for one that has none."""
    if isinstance(told, str):
        try:
            return Template(told).substitute(values)
        except (KeyError, ValueError) as error:
            sentence = f"give ${{…}} a value with --set NAME=VALUE, or write $$ for a dollar sign ({error})"
            raise PlanError(place, sentence) from error
    if isinstance(told, Mapping):
        return {name: _filled(value, values, (*place, str(name))) for name, value in told.items()}
    if isinstance(told, list):
        return [_filled(value, values, (*place, number)) for number, value in enumerate(told)]
    return told


def _beside(told: Any, folder: Path) -> Any:
    """What a file says, with its relative paths as other processes find them. What is of another form stays."""

    def resolve_path(path: str) -> str:
        return path if is_remote(path) else absolute_path(str(folder / path))

    def table(own: Any) -> Any:
        if not isinstance(own, Mapping):
            return own
        paths = {key: resolve_path(own[key]) for key in ("files", "rejects") if isinstance(own.get(key), str)}
        udf = own.get("udf")
        code = {"udf": resolve_path(udf)} if isinstance(udf, str) and udf.rpartition(":")[0].endswith(".py") else {}
        return {**own, **paths, **code}

    if not isinstance(told, Mapping) or not isinstance(told.get("tables"), Mapping):
        return told
    return {**told, "tables": {name: table(own) for name, own in told["tables"].items()}}


def described(plan: Plan) -> list[str]:
    """What a pipeline does, a line each."""
    lines = [f"reads {source} as {name}" for name, source in plan.reads.items()]
    for name, table in plan.tables.items():
        origin = f"files {table.files}" if table.files else "SQL"
        code = f", through {table.udf}" if table.udf else ""
        lines.append(f"{table.mode} {name} from {origin}{code}")
        lines += [f"  index {index.order().name}: {index.order().kind} of {index.column}" for index in table.indexes]
    ending = f", tagged {plan.tag}" if plan.tag else ""
    return [*lines, f"publish {', '.join(plan.tables)} at once{ending}"]
