"""The registry of jobs: makes a function the command `tiltyard job NAME`, and work that a server can queue.

To register one, name its module in `tiltyard.model.jobs.PIPELINE_JOBS` (another package: in an entry point of the group
`tiltyard.jobs`), and decorate the function there:

    @job("export")
    def export(
        run: Run,
        catalog: CatalogConnection,
        spark: SparkSession,
        table: Annotated[str, "The table to read."],
        destination: Annotated[str, "The folder to write, local or of an object store."],
        *,
        columns: Annotated[list[str], "Only these columns."] = [],
        rows_per_file: Annotated[int, "How many rows a file holds at most."] = 1_000_000,
    ) -> Mapping[str, object]:
        \"\"\"Write a table's rows to Parquet files.\"\"\"

`run` reports progress and saves checkpoints (`tiltyard.pipeline.runs`), `catalog` is the connection to the namespace,
`spark` the session (None for a job that is registered with `spark=False`). The other parameters are the job's
arguments. They travel as JSON, so their types are those of JSON: `str`, `int`, `float`, `bool`, `list[str]`,
`dict[str, str]`, a `Literal` of texts, or one of them `| None`. Positional ones are arguments of the command,
keyword-only ones its options; the text in `Annotated` is their help, the docstring the command's. Beside that text,
`Alias("older_name")` is a name that a parameter had before, and `ColumnNames()` says that it is a list of columns,
which options separate by commas (`--select a,b`). Options that several jobs have are the fields of a TypedDict, and
parameters by `**options: Unpack[…]`; each may be absent. The function returns the job's last figures.
An argument called `table` is the table that the job works on: the transaction is listed under it, and canceled if the
table is dropped.

A canceled job gets RunCanceledError from the next method of `run` that it calls, and lets it pass; until its commit it
has changed nothing. Errors of the caller are those of `lance_namespace.errors`, or RefusedError from a task.
"""

from __future__ import annotations

import csv
import functools
import importlib
import inspect
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from lance_namespace.errors import InternalError, InvalidInputError, PermissionDeniedError, ServiceUnavailableError

from tiltyard.model.ids import parse_id
from tiltyard.model.jobs import DRIVER_VARIABLE, UDFS_VARIABLE, pipeline_jobs
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.openlineage.emitter import observe
from tiltyard.pipeline.task_errors import clean_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.session import LazySession
    from tiltyard.pipeline.table_location import CatalogConnection

Function = TypeVar("Function", bound=Callable[..., Mapping[str, object]])

MAX_ECHO = 40
"""How many characters of a value a message repeats."""
DRIVER_PARAMETERS = 3
"""How many parameters of a job function the driver supplies: run, catalog, spark."""
_OUTAGE = re.compile(
    r"service unavailable|failed to (execute request|read response body)|error response: status=50[234]", re.IGNORECASE
)
"""What is said of a server that refused the connection, ended in the middle of a response, or was being replaced."""


@dataclass(frozen=True, slots=True)
class Alias:
    """An earlier name of a parameter, which is still accepted."""

    name: str


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Marks a list of columns: as texts, several of them stand in one, separated by commas."""


def split_names(text: str) -> list[str]:
    """Return the names in a text, separated by commas; one with a comma in it stands in double quotes."""
    return [name.strip() for line in csv.reader([text], skipinitialspace=True) for name in line if name.strip()]


@dataclass(frozen=True, slots=True)
class JobParameter:
    """An argument of a job. `kind` is its type without `| None`; `default` is inspect's `empty` where it has none.

    `aliases` are earlier names, which arguments may still have; `names_columns` says that it is a list of columns.
    """

    name: str
    kind: Any
    hint: Any
    help: str
    default: Any
    positional: bool
    aliases: tuple[str, ...] = ()
    names_columns: bool = False

    @property
    def is_required(self) -> bool:
        """Return whether a caller must set it."""
        return self.default is inspect.Parameter.empty

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the texts that it may be; () for any."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_list(self) -> bool:
        """Return whether it is a list."""
        return get_origin(self.kind) is list

    @property
    def is_mapping(self) -> bool:
        """Return whether it is a mapping of names to values."""
        return get_origin(self.kind) is dict


@dataclass(frozen=True)
class RegisteredJob:
    """A job function and its parameters; `spark` says whether it needs a session, `lazy` whether only for much work.

    `creates` says whether its command may begin a catalog where none is.
    """

    name: str
    function: Callable[..., Mapping[str, object]]
    spark: bool
    lazy: bool = False
    creates: bool = False

    def run(
        self,
        run: Run,
        catalog: CatalogConnection,
        spark: SparkSession | LazySession | None,
        arguments: Mapping[str, Any],
    ) -> Mapping[str, object]:
        """Call the function with arguments that are valid. Raises what it raises, an outage as what it is."""
        with translating_outages():
            return self.function(run, catalog, spark, **arguments)

    @cached_property
    def parameters(self) -> tuple[JobParameter, ...]:
        """Return its arguments, in order."""
        *parameters, last = list(inspect.signature(self.function).parameters.values())[DRIVER_PARAMETERS:]
        is_shared = last.kind is inspect.Parameter.VAR_KEYWORD
        parameters = parameters if is_shared else [*parameters, last]
        # Only these are resolved: the types of what the driver supplies may be imported for type checkers only.
        arguments = type(
            "Arguments", (), {"__annotations__": {parameter.name: parameter.annotation for parameter in parameters}}
        )
        module = importlib.import_module(self.function.__module__)
        hints = get_type_hints(arguments, vars(module), include_extras=True)
        own = tuple(_parameter(parameter, hints[parameter.name]) for parameter in parameters)
        return (*own, *_shared_parameters(last, vars(module))) if is_shared else own

    @cached_property
    def _model(self) -> type[msgspec.Struct]:
        fields = [
            (parameter.name, parameter.hint)
            if parameter.is_required
            else (parameter.name, parameter.hint, _field_default(parameter.default))
            for parameter in self.parameters
        ]
        return msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with all defaults, as JSON holds them. Raises InvalidInputError for invalid ones."""
        arguments = self.rename_aliases(arguments)
        self._check_choices(arguments)
        self._check_numbers(arguments)
        try:
            model = msgspec.convert(arguments, self._model)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"The job '{self.name}' cannot take these arguments: {error}") from error
        return msgspec.structs.asdict(model)

    def rename_aliases(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments under their current names. Raises InvalidInputError for one that is there twice."""
        current = {alias: parameter.name for parameter in self.parameters for alias in parameter.aliases}
        renamed: dict[str, Any] = {}
        for name, value in arguments.items():
            new_name = current.get(name, name)
            if new_name in renamed:
                raise InvalidInputError(f"The job '{self.name}' takes {new_name} once: {name} is another name of it.")
            renamed[new_name] = value
        return renamed

    def _check_choices(self, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInputError for a text that is none of its parameter's choices; the message has them."""
        for parameter in self.parameters:
            value = arguments.get(parameter.name)
            if parameter.choices and isinstance(value, str) and value not in parameter.choices:
                raise InvalidInputError(
                    f"{parameter.name} is one of {', '.join(parameter.choices)}, and not '{value[:MAX_ECHO]}'."
                )

    @staticmethod
    def _check_numbers(arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInputError for a NaN or an infinity: JSON, in which arguments travel, has neither."""
        for name, value in arguments.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidInputError(f"{name} is {value}, and no number: leave it out, or give one.")

    @staticmethod
    def table(arguments: Mapping[str, Any]) -> list[str]:
        """Return the id of the table that it works on; [] for none. Raises InvalidInputError."""
        name = arguments.get("table")
        return list(parse_id(name)) if isinstance(name, str) else []


_registry: dict[str, RegisteredJob] = {}


def job(name: str, *, spark: bool = True, lazy: bool = False, creates: bool = False) -> Callable[[Function], Function]:
    """Register a job function under a name; with `spark=False` no session is started for it, with `lazy` a
    `LazySession` is handed to it. One that makes tables `creates` the catalog, too, where none is at a root.

    A RefusedError of a task, or of code that tasks and the driver share, becomes an InvalidInputError for the caller.
    """

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def translated(*arguments: Any, **options: Any) -> Mapping[str, object]:
            run, catalog, *others = arguments
            current = _registry[name].rename_aliases(options)

            def work(observed: Any) -> Mapping[str, object]:
                try:
                    return function(observed, catalog, *others, **current)
                except RefusedError as refusal:
                    raise InvalidInputError(str(refusal)) from refusal

            named = dict(zip(_positional(function), others[1:], strict=False))
            return observe(name, run, catalog, {**named, **current}, work)

        _registry[name] = RegisteredJob(name, translated, spark, lazy, creates)
        return cast("Function", translated)

    return register


def _positional(function: Callable[..., Any]) -> list[str]:
    """Return the names of a job function's own parameters, in order."""
    return list(inspect.signature(function).parameters)[DRIVER_PARAMETERS:]


def find_job(name: str) -> RegisteredJob:
    """Find a job by its name. Raises InvalidInputError for one that does not exist."""
    if name not in _registry:
        modules = pipeline_jobs()
        if name not in modules:
            raise InvalidInputError(f"There is no job '{name}': choose one of {', '.join(sorted(modules))}.")
        importlib.import_module(modules[name])
    return _registry[name]


def _parameter(parameter: inspect.Parameter, hint: Any) -> JobParameter:
    help_text, marks = "", list[Any]()
    if get_origin(hint) is Annotated:
        hint, help_text, *marks = get_args(hint)
    kinds = (
        [kind for kind in get_args(hint) if kind is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    )
    positional = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    aliases = tuple(mark.name for mark in marks if isinstance(mark, Alias))
    names_columns = any(isinstance(mark, ColumnNames) for mark in marks)
    return JobParameter(
        parameter.name, kinds[0], hint, str(help_text), parameter.default, positional, aliases, names_columns
    )


def _shared_parameters(options: inspect.Parameter, names: Mapping[str, Any]) -> Iterator[JobParameter]:
    """Yield the options that `**options: Unpack[…]` stands for, None by default."""
    holder = type("Options", (), {"__annotations__": {"options": options.annotation}})
    (fields,) = get_args(get_type_hints(holder, dict(names))["options"])
    for name, hint in get_type_hints(fields, include_extras=True).items():
        yield _parameter(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None), hint)


def _field_default(default: Any) -> Any:
    """Return a default as msgspec takes it: each call gets its own copy of a list or mapping."""
    return (
        msgspec.field(default_factory=lambda: type(default)(default)) if isinstance(default, list | dict) else default
    )


def check_client_code_allowed() -> None:
    """Raise PermissionDeniedError where clients' code may not run. Call before any of it is unpickled or imported.

    It may always run where a client drives the job itself, on a worker only if its setting allows it.
    """
    if os.environ.get(UDFS_VARIABLE) == "off":
        raise PermissionDeniedError("This worker runs no code of clients: its setting 'udfs' allows it.")


def is_worker_driver() -> bool:
    """Return whether this process drives jobs for a worker: then SQL comes from others than the user of the process."""
    return os.environ.get(DRIVER_VARIABLE) == "worker"


def is_outage(error: BaseException) -> bool:
    """Return whether a server did not answer.

    Lance's client raises InternalError for a connection that was cut, and Lance an OSError with the same text.
    """
    if isinstance(error, ServiceUnavailableError):
        return True
    return isinstance(error, (OSError, InternalError)) and _OUTAGE.search(str(error)) is not None


@contextmanager
def translating_outages() -> Iterator[None]:
    """Raise the outages of the block as ServiceUnavailableError, with a sentence that says what to look at."""
    try:
        yield
    except ServiceUnavailableError:
        raise
    except (OSError, InternalError) as error:
        if not is_outage(error):
            raise
        raise ServiceUnavailableError(
            f"The catalog's server did not answer, or not to the end: is it running? ({clean_message(error)})"
        ) from error
