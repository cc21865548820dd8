"""The registry of jobs: how a function becomes `tiltyard job NAME`, and work that a server can queue.

To register one, name its module in `tiltyard.model.jobs.PIPELINE_JOBS` (another package: in an entry point of the group
`tiltyard.jobs`), and decorate the function there:

    @job("export")
    def export(
        run: Run,
        where: Connection,
        spark: SparkSession,
        table: Annotated[str, "The table to read."],
        destination: Annotated[str, "The folder to write, local or of an object store."],
        *,
        columns: Annotated[list[str], "Only these columns."] = [],
        rows_per_file: Annotated[int, "How many rows a file holds at most."] = 1_000_000,
    ) -> Mapping[str, object]:
        \"\"\"Write a table's rows to Parquet files.\"\"\"

`run` tells and hears (`tiltyard.pipeline.runs`), `where` is the catalog, `spark` the session (None for a job that is
registered with `spark=False`). What follows are the job's arguments. They travel as JSON, so their types are those of
JSON: `str`, `int`, `float`, `bool`, `list[str]`, `dict[str, str]`, a `Literal` of texts, or one of them `| None`.
Positional ones are arguments of the command, keyword-only ones its options; the text in `Annotated` is their help, the
docstring the command's. What the function returns are the job's last figures. An argument called `table` is the table
that the job works on: the transaction is listed under it, and canceled if it is dropped.

A job hears of a cancel as RunCanceledError, from whatever method of `run` it calls, and lets it pass; until its commit
it has changed nothing. A mistake of the caller is one of `lance_namespace.errors`, or RefusedError from a task.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.model.jobs import DRIVER, UDFS, pipeline_jobs
from tiltyard.pipeline.task_errors import RefusedError

Function = TypeVar("Function", bound=Callable[..., Mapping[str, object]])

DRIVER_PARAMETERS = 3
"""How many parameters of a job function the driver fills: run, where, spark."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a job. `kind` is its type without `| None`; `default` is inspect's `empty` where it has none."""

    name: str
    kind: Any
    hint: Any
    help: str
    default: Any
    positional: bool

    @property
    def required(self) -> bool:
        """Whether a caller has to give it."""
        return self.default is inspect.Parameter.empty

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts it may be; () for any."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def many(self) -> bool:
        """Whether it is a list."""
        return get_origin(self.kind) is list

    @property
    def pairs(self) -> bool:
        """Whether it holds names and their values."""
        return get_origin(self.kind) is dict


@dataclass(frozen=True)
class RegisteredJob:
    """A job function and what it takes; `spark` is whether it needs a session."""

    name: str
    function: Callable[..., Mapping[str, object]]
    spark: bool

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its arguments, in order."""
        taken = list(inspect.signature(self.function).parameters.values())[DRIVER_PARAMETERS:]
        # Only these are resolved: the types of what the driver fills may be imported for type checkers alone.
        wanted = type("Arguments", (), {"__annotations__": {one.name: one.annotation for one in taken}})
        module = importlib.import_module(self.function.__module__)
        hints = get_type_hints(wanted, vars(module), include_extras=True)
        return tuple(_parameter(one, hints[one.name]) for one in taken)

    @cached_property
    def _model(self) -> type[msgspec.Struct]:
        fields = [
            (one.name, one.hint) if one.required else (one.name, one.hint, _field_default(one.default))
            for one in self.parameters
        ]
        return msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with all defaults, as JSON holds them. Raises InvalidInputError for what does not fit."""
        try:
            found = msgspec.convert(dict(arguments), self._model)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"The job '{self.name}' cannot take these arguments: {error}") from error
        return msgspec.structs.asdict(found)

    @staticmethod
    def table(arguments: Mapping[str, Any]) -> list[str]:
        """The id of the table that it works on; [] for none. Raises InvalidInputError."""
        name = arguments.get("table")
        return list(parse_id(name, DEFAULT_DELIMITER)) if isinstance(name, str) else []


_registry: dict[str, RegisteredJob] = {}


def job(name: str, *, spark: bool = True) -> Callable[[Function], Function]:
    """Register a job function under a name; `spark=False` spares it the start of a session.

    A RefusedError of a task, or of what tasks and the driver share, becomes the InvalidInputError that it is to a
    caller.
    """

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def told(*given: Any, **named: Any) -> Mapping[str, object]:
            try:
                return function(*given, **named)
            except RefusedError as refusal:
                raise InvalidInputError(str(refusal)) from refusal

        _registry[name] = RegisteredJob(name, told, spark)
        return cast("Function", told)

    return register


def find_job(name: str) -> RegisteredJob:
    """A job by its name. Raises InvalidInputError for one that does not exist."""
    if name not in _registry:
        known = pipeline_jobs()
        if name not in known:
            raise InvalidInputError(f"There is no job '{name}': choose one of {', '.join(sorted(known))}.")
        importlib.import_module(known[name])
    return _registry[name]


def _parameter(taken: inspect.Parameter, hint: Any) -> Parameter:
    text = ""
    if get_origin(hint) is Annotated:
        hint, text = get_args(hint)[0], str(get_args(hint)[1])
    kinds = [one for one in get_args(hint) if one is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    positional = taken.kind is not inspect.Parameter.KEYWORD_ONLY
    return Parameter(taken.name, kinds[0], hint, text, taken.default, positional)


def _field_default(default: Any) -> Any:
    """A default as msgspec wants it: of a list or mapping, each call has its own."""
    return (
        msgspec.field(default_factory=lambda: type(default)(default)) if isinstance(default, list | dict) else default
    )


def check_client_code_allowed() -> None:
    """Raise PermissionDeniedError where clients' code may not run. Called before any of it is unpickled or imported."""
    if os.environ.get(UDFS) == "off":
        raise PermissionDeniedError("This worker runs no code of clients: its setting 'udfs' allows it.")


def is_worker_driver() -> bool:
    """Tell whether this process drives jobs for a worker: SQL is then not of whoever started the process."""
    return os.environ.get(DRIVER) == "worker"
