"""What a ready-made function is: a name, a version, arguments, and how it computes an array of an array.

It is an ordinary function of a column: what takes a function of a pyarrow.RecordBatch takes it, pickled by its name,
version and arguments alone, or written as text: `detect_language`, `embed_text(model='wordllama')`.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import inspect
import json
import pickle
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, Final

import pyarrow as pa

from tiltyard.model.refusals import RefusedError

MAX_TEXT_BYTES = 8 << 20
"""Bytes of UTF-8 that a text has, at most: the row fails for a longer one."""
MAX_IMAGE_BYTES = 64 << 20
"""Bytes that an image has, at most: the row fails for a longer one."""
MAX_CALL_LENGTH = 4096
"""Characters of a ready-made function that is written as text, with its arguments."""
_CALL = re.compile(r"([a-z][a-z0-9_]*)(?:@([0-9]{1,9}))?(\(.*\))?", re.DOTALL)


class Takes(StrEnum):
    """What a function computes its values of: a column of text, or one of bytes that are images."""

    TEXT = "text"
    IMAGE = "image"


class _Nothing:
    """Says that an argument was left out: None is a value."""


_NOTHING: Final = _Nothing()


@dataclass(frozen=True, slots=True, eq=False)
class ReadyMade:
    """A ready-made function with its arguments.

    Called with arguments by name it returns the same function with them; called with a column (an array, a batch of
    one column) it returns the values as an array; called with one text or image, its value. A null has no value.

    `result` returns the type of the values for all arguments, and checks them. `fingerprint` returns a digest of what
    else the values depend on (the files of a model). `depends_on` is that of this function: another one is refused.
    """

    name: str
    version: int
    takes: Takes
    compute: Callable[..., pa.Array] = field(repr=False)
    result: Callable[..., pa.DataType] = field(repr=False)
    result_text: str
    specs: tuple[ArgumentSpec, ...] = field(repr=False)
    packages: tuple[str, ...] = ()
    fingerprint: Callable[..., str] | None = field(default=None, repr=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    depends_on: str = ""

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __doc__(self) -> str:  # type: ignore[override]  # a text on each instance
        return inspect.getdoc(self.compute) or ""

    def __call__(self, rows: Any = _NOTHING, /, **arguments: Any) -> Any:
        """Return the values of a column or of one text or image; without, the function with arguments.

        Raises RefusedError for what the function does not take, ValueError for a value that it cannot compute.
        """
        if isinstance(rows, _Nothing):
            return self.with_arguments(arguments)
        if arguments:
            raise RefusedError(f"{self.name} is given a column and arguments at once: write {self.name}(…)(column).")
        if rows is None or isinstance(rows, str | bytes):
            kind = pa.string() if self.takes is Takes.TEXT else pa.binary()
            self._check_value(rows)
            return self._compute(pa.array([rows], kind))[0].as_py()
        return self._compute(self._column(rows))

    def setup(self) -> None:
        """Load what the function needs, once a process. Raises RefusedError where it is missing, or another one."""
        arguments = self.complete()
        self._check_packages()
        if self.fingerprint is not None and self.fingerprint(**arguments) != self.depends_on:
            raise RefusedError(
                f"{self} was made with other files than those that are here: give this machine the same, or make the "
                "function again."
            )

    def with_arguments(self, arguments: Mapping[str, Any]) -> ReadyMade:
        """Return the function with these arguments besides its own. Raises RefusedError for wrong ones."""
        specs = {spec.name: spec for spec in self.specs}
        if unknown := [name for name in arguments if name not in specs]:
            known = f"it has {', '.join(specs)}" if specs else "it has none"
            raise RefusedError(f"{self.name} has no argument '{unknown[0]}': {known}.")
        own = {name: specs[name].check(self.name, value) for name, value in arguments.items()}
        changed = replace(self, arguments={**self.arguments, **own})
        complete = changed.complete()
        self.result(**complete)
        return replace(changed, depends_on="" if self.fingerprint is None else self.fingerprint(**complete))

    def complete(self) -> dict[str, Any]:
        """Return all arguments. Raises RefusedError if one is missing."""
        values = self._given()
        if missing := [spec.name for spec in self.specs if spec.name not in values]:
            raise RefusedError(f"{self.name} needs {missing[0]}: write {self.name}({missing[0]}=…).")
        return values

    @property
    def result_type(self) -> pa.DataType:
        """The type of the values. Raises RefusedError if an argument is missing."""
        return self.result(**self.complete())

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides the values: the name, the version, the arguments, the files of a model."""
        parts = [self.name, self.version, self._given(), self.depends_on]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _given(self) -> dict[str, Any]:
        """Return all arguments but those that are missing."""
        values = {spec.name: self.arguments.get(spec.name, spec.default) for spec in self.specs}
        return {name: value for name, value in values.items() if value is not inspect.Parameter.empty}

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs besides Tiltyard, in words: packages, or a model with those that compute it."""
        has_model = any(spec.name == "model" for spec in self.specs)
        return (*self.packages, "a model and its packages") if has_model else self.packages

    @property
    def missing_packages(self) -> list[str]:
        """The Python packages that it needs, and that are not installed here."""
        return [package for package in self.packages if find_spec(_MODULES.get(package, package)) is None]

    def _check_packages(self) -> None:
        if missing := self.missing_packages:
            raise RefusedError(f"{self.name} needs the package {missing[0]}: install it where functions run.")

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}@{self.version}({arguments})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_pinned, (self.name, self.version, json.dumps(self._given()), self.depends_on)

    def pickled(self) -> str:
        """Return the function as columns and jobs hold code: a pickle in base64, the same for the same function."""
        complete = self if self.depends_on or self.fingerprint is None else self.with_arguments({})
        complete.complete()
        return base64.b64encode(pickle.dumps(complete, protocol=4)).decode()

    def _column(self, rows: Any) -> pa.Array:
        """Return the column as text or bytes. Raises RefusedError, ValueError for a value that is too long."""
        if isinstance(rows, pa.RecordBatch | pa.Table):
            if rows.num_columns != 1:
                raise RefusedError(f"{self.name} takes one column, and is given {rows.num_columns}: name one of them.")
            rows = rows.column(0)
        if isinstance(rows, pa.ChunkedArray):
            rows = rows.combine_chunks()
        if not isinstance(rows, pa.Array):
            raise RefusedError(f"{self.name} takes a column of Arrow, and not {type(rows).__name__}.")
        self.check_type(rows.type)
        column = rows.cast(pa.large_string() if self.takes is Takes.TEXT else pa.large_binary())
        longest = pa.compute.max(pa.compute.binary_length(column)).as_py() or 0
        self._check_length(longest)
        return column

    def check_type(self, kind: pa.DataType) -> None:
        """Raise RefusedError for a type of columns that the function does not take."""
        value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
        kinds = _TEXT_KINDS if self.takes is Takes.TEXT else _BYTE_KINDS
        if not any(is_kind(value_type) for is_kind in kinds):
            raise RefusedError(f"{self.name} takes a column of {_NOUNS[self.takes]}, and this one is {kind}.")

    def _check_value(self, value: str | bytes | None) -> None:
        if value is not None and isinstance(value, str) is not (self.takes is Takes.TEXT):
            raise RefusedError(f"{self.name} takes {_NOUNS[self.takes]}, and not {type(value).__name__}.")
        self._check_length(len(value.encode() if isinstance(value, str) else value or b""))

    def _check_length(self, length: int) -> None:
        most = MAX_TEXT_BYTES if self.takes is Takes.TEXT else MAX_IMAGE_BYTES
        if length > most:
            raise ValueError(f"the {self.takes} has {length} bytes, and {most} at most are taken")

    def _compute(self, column: pa.Array) -> pa.Array:
        arguments = self.complete()
        self._check_packages()
        return self.compute(column, **arguments)


_MODULES: Mapping[str, str] = {"pillow": "PIL"}
"""The modules of packages whose name is another one."""
_NOUNS = {Takes.TEXT: "text", Takes.IMAGE: "images as bytes"}
_TEXT_KINDS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
_BYTE_KINDS = (
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view,
    pa.types.is_null,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArgumentSpec:
    """An argument of a ready-made function."""

    name: str
    hint: Any
    default: Any

    def check(self, function: str, value: Any) -> Any:
        """Return a value as JSON has it. Raises RefusedError if it is of another type."""
        kinds = typing.get_args(self.hint) if isinstance(self.hint, types.UnionType) else (self.hint,)
        for kind in kinds:
            if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
                if all(isinstance(each, str) for each in value):
                    return list(value)
            elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
            elif kind is types.NoneType and value is None:
                return None
            elif isinstance(kind, type) and type(value) is kind:
                return value
        raise RefusedError(f"{function}: {self.name} is {value!r}, and has to be {self.kind}.")

    @property
    def kind(self) -> str:
        """What it has to be, in words."""
        kinds = typing.get_args(self.hint) if isinstance(self.hint, types.UnionType) else (self.hint,)
        return " or ".join(_KINDS.get(kind, "a list of texts") for kind in kinds)

    def __str__(self) -> str:
        if self.default is inspect.Parameter.empty:
            return self.name
        default = list(self.default) if isinstance(self.default, tuple) else self.default
        return f"{self.name}={default!r}"


_KINDS: Mapping[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "nothing"
}  # fmt: skip


def _argument_specs(compute: Callable[..., pa.Array]) -> Iterator[ArgumentSpec]:
    """Yield the arguments of a function: those that are given by name alone."""
    hints = typing.get_type_hints(compute)
    for name, parameter in inspect.signature(compute).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            yield ArgumentSpec(name, hints[name], parameter.default)


_REGISTRY: dict[str, ReadyMade] = {}


def ready_made(
    *,
    version: int,
    takes: Takes,
    result: Callable[..., pa.DataType],
    result_text: str,
    packages: tuple[str, ...] = (),
    fingerprint: Callable[..., str] | None = None,
) -> Callable[[Callable[..., pa.Array]], ReadyMade]:
    """Register a function of an array, whose arguments are by name alone, under its own name."""

    def register(compute: Callable[..., pa.Array]) -> ReadyMade:
        specs = tuple(_argument_specs(compute))
        function = ReadyMade(
            compute.__name__, version, takes, compute, result, result_text, specs, packages, fingerprint
        )  # fmt: skip
        _REGISTRY[function.name] = function
        return function

    return register


def list_functions() -> list[ReadyMade]:
    """Return all ready-made functions by name."""
    import tiltyard.functions  # noqa: F401, PLC0415  # which registers them

    return [_REGISTRY[name] for name in sorted(_REGISTRY)]


def find_function(name: str, version: int | None = None) -> ReadyMade:
    """Return a ready-made function. Raises RefusedError if there is none, or none of that version."""
    functions = {function.name: function for function in list_functions()}
    if name not in functions:
        raise RefusedError(
            f"There is no ready-made function '{name}' (`tiltyard functions` lists them): write the name of one, or "
            "module:function or file.py:function for one of your own."
        )
    found = functions[name]
    if version not in (None, found.version):
        raise RefusedError(
            f"{name} is version {found.version} here, and version {version} is asked for: use the Tiltyard that has "
            f"it, or declare the column again by version {found.version}, which computes its values again."
        )
    return found


def open_pinned(name: str, version: int, arguments: str, depends_on: str) -> ReadyMade:
    """Return a function as it was pickled. Raises RefusedError if the version here is another one."""
    return replace(find_function(name, version), arguments=json.loads(arguments), depends_on=depends_on)


def is_ready_made(text: str) -> bool:
    """Return whether a text has the form of a ready-made function: `name`, `name(argument=1)`, `name@1(…)`."""
    return len(text) <= MAX_CALL_LENGTH and _CALL.fullmatch(text) is not None


def parse_ready_made(text: str) -> ReadyMade:
    """Parse a ready-made function with literal arguments; no code is run. Raises RefusedError."""
    match = _CALL.fullmatch(text) if len(text) <= MAX_CALL_LENGTH else None
    if match is None:
        raise RefusedError(f"'{text[:200]}' is no ready-made function: write name(argument=value).")
    name, version, call = match.groups()
    function = find_function(name, None if version is None else int(version))
    try:
        tree = ast.parse(f"f{call or '()'}", mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args or not isinstance(tree.func, ast.Name):
            raise ValueError("arguments are given by name")
        arguments = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in tree.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RefusedError(f"The arguments of {name} cannot be read: write {name}(argument=value, …).") from error
    return function.with_arguments(arguments)


def map_values(column: pa.Array, kind: pa.DataType, compute: Callable[[Any], Any]) -> pa.Array:
    """Return an array of what a function returns for each value; nulls stay. Raises what it raises."""
    return pa.array([None if value is None else compute(value) for value in column.to_pylist()], kind)
