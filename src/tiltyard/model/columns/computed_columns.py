"""Declarations of computed columns, in the metadata of the column's field, where every Lance reader finds them.

A column is computed by code (`tiltyard.udf.…`), which is unpickled in Spark's Python workers alone, by a version of a
registered function (`tiltyard.udf.function`), or by an SQL expression (`tiltyard.computed.expression`). Its
values are null until a backfill computes them, and stale once the declaration's `identity` is another than the one that
they were computed by.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.model.schemas.fields import metadata_texts

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = "tiltyard.udf."
MAX_CODE_LENGTH = 256 << 10
"""How long code may be, in characters of base64: every version's manifest repeats it."""
SCALAR = "$value"
"""lancedb's name for the result of a function that returns one value."""
EXPRESSION = "tiltyard.computed.expression"
FUNCTION = "tiltyard.udf.function"
"""The metadata of a column that a registered function computes: the fields of `FunctionDeclaration` as JSON."""
AUTO_REFRESH = "computed_column.auto_refresh_"
"""lancedb's prefix of the metadata that permits a server to refresh a computed column by itself: `enabled` (true or
false), `interval_seconds` (at least between two such refreshes). Clients may change it."""
AUTO_REFRESH_ENABLED = f"{AUTO_REFRESH}enabled"
VIEW = "tiltyard.view."
"""The prefix of the metadata of a materialized view's schema: `kind` (select, query, udtf, chunker), `query`, `udtf`
(the specification's MaterializedViewUdtfEntry as JSON), `auto_refresh` (true, or absent)."""


_DECIMAL = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class UdfDeclaration:
    """The declaration of a column that code computes; each attribute is the metadata `tiltyard.udf.<name>`.

    `code` is the callable, pickled (cloudpickle's are such), in base64. It is called with a pyarrow.RecordBatch of the
    columns `inputs`, in this order, and returns an array of as many values: those of the column, or a struct array
    whose field `struct_field` has them. `image` is the container image in which it runs on Kubernetes.
    """

    name: str
    version: str
    code: str
    inputs: tuple[str, ...]
    struct_field: str = ""
    image: str = ""
    backend: str = ""
    manifest: str = ""
    manifest_checksum: str = ""

    @property
    def identity(self) -> str:
        """The hash of what values are computed by: values of another identity are stale."""
        parts = json.dumps([self.name, self.version, self.code, self.inputs, self.struct_field])
        return hashlib.sha256(parts.encode()).hexdigest()

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the field; empty attributes are left out."""
        texts = {spec.name: getattr(self, spec.name) for spec in fields(self)} | {"inputs": json.dumps(self.inputs)}
        return {f"{PREFIX}{name}": text for name, text in texts.items() if text}

    def with_changes(self, **changes: Any) -> UdfDeclaration:
        """Return the declaration with the changes that are not None."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True, slots=True)
class ExpressionDeclaration:
    """The declaration of a column that an SQL expression over the table's other columns computes."""

    expression: str

    @property
    def identity(self) -> str:
        """The hash of what values are computed by."""
        return hashlib.sha256(self.expression.encode()).hexdigest()

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the field."""
        return {EXPRESSION: self.expression}


class FunctionDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a column that a version of a registered function computes.

    `inputs` has the column of each of the function's parameters, in their order; `result` is the field of the output,
    "$value" for a scalar; `initialization` is what an instance of a class is created with, in JSON. `function` is the
    function's id at the time, for messages.
    """

    function: tuple[str, ...]
    object_id: str
    version: int
    manifest_digest: str
    inputs: tuple[tuple[str, str], ...]
    result: str
    initialization: str = "{}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the function reads."""
        return tuple(column for _, column in self.inputs)

    @property
    def identity(self) -> str:
        """The hash of what values are computed by; registered again under another name, a function is the same."""
        parts = json.dumps([self.manifest_digest, self.inputs, self.result, self.initialization])
        return hashlib.sha256(parts.encode()).hexdigest()

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the field."""
        return {FUNCTION: msgspec.json.encode(self).decode()}


Declaration = UdfDeclaration | ExpressionDeclaration | FunctionDeclaration


def declares_column(key: str) -> bool:
    """Return whether a key of a field's metadata declares what computes the column."""
    return key in (EXPRESSION, FUNCTION) or key.startswith(PREFIX)


def read_declaration(metadata: Mapping[Any, Any] | None) -> Declaration | None:
    """Read a column's declaration from its field's metadata (of pyarrow, or text); None for an ordinary column."""
    texts = metadata_texts(metadata)
    if EXPRESSION in texts:
        return ExpressionDeclaration(texts[EXPRESSION])
    if FUNCTION in texts:
        try:
            return msgspec.json.decode(texts[FUNCTION], type=FunctionDeclaration)
        except msgspec.DecodeError:
            return None  # a client wrote it: no function computes the column
    values: dict[str, Any] = {
        spec.name: texts[PREFIX + spec.name] for spec in fields(UdfDeclaration) if PREFIX + spec.name in texts
    }
    if not {"name", "version", "code", "inputs"} <= values.keys():
        return None
    return UdfDeclaration(**{**values, "inputs": tuple(json.loads(values["inputs"]))})


def parse_seconds(text: str) -> float:
    """Read an interval in metadata, which clients may write; 0 for what is none."""
    return float(text) if _DECIMAL.fullmatch(text) else 0.0


def refresh_seconds(metadata: Mapping[Any, Any] | None) -> float | None:
    """Return the interval in which a column refreshes by itself, by its metadata; None where it does not.

    0 where that leaves the interval open.
    """
    texts = metadata_texts(metadata)
    return parse_seconds(texts.get(f"{AUTO_REFRESH}interval_seconds", "")) if is_auto_refreshed(texts) else None


def is_auto_refreshed(metadata: Mapping[str, str | None]) -> bool:
    """Return whether metadata, or changes of it, let a column refresh by itself."""
    return metadata.get(AUTO_REFRESH_ENABLED) == "true"


def declared_inputs(schema: pa.Schema, declaration: Declaration) -> tuple[str, ...]:
    """Return the columns that a declaration reads."""
    if isinstance(declaration, ExpressionDeclaration):
        return input_columns(schema, declaration.expression)
    return declaration.inputs if isinstance(declaration, UdfDeclaration) else declaration.columns


def input_columns(schema: pa.Schema, expression: str) -> tuple[str, ...]:
    """Return the columns that an SQL expression may read: those whose names are words of it."""
    return tuple(name for name in schema.names if re.search(rf"\b{re.escape(name)}\b", expression))


def result_field(declaration: UdfDeclaration | FunctionDeclaration) -> str:
    """Return the field of the struct that code returns, which a column holds; "" for the whole value."""
    if isinstance(declaration, UdfDeclaration):
        return declaration.struct_field
    return "" if declaration.result == SCALAR else declaration.result


def find_siblings(
    schema: pa.Schema, column: str, declaration: UdfDeclaration | FunctionDeclaration
) -> dict[str, UdfDeclaration | FunctionDeclaration]:
    """Return the declarations of a column, and of those which hold other fields of what the same call returns."""
    siblings = {column: declaration}
    for field in schema:
        other = read_declaration(field.metadata)
        if (
            isinstance(other, UdfDeclaration | FunctionDeclaration)
            and result_field(other)
            and _call_of(other) == _call_of(declaration)
        ):
            siblings.setdefault(field.name, other)
    return siblings


def _call_of(declaration: UdfDeclaration | FunctionDeclaration) -> Any:
    """Return what is called with which columns, without what a column takes of the result."""
    if isinstance(declaration, UdfDeclaration):
        return replace(declaration, struct_field="")
    return declaration.manifest_digest, declaration.inputs, declaration.initialization
