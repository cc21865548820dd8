"""A table's schema as a tree: Lance's types, metadata, computed columns with what computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.model.columns.computed_columns import (
    ExpressionDeclaration,
    FunctionDeclaration,
    declares_column,
    read_declaration,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tiltyard.model.columns.computed_columns import Declaration

BLOB_METADATA = ("lance-encoding:blob", "lance:blob")
BINARY = frozenset({"binary", "large_binary", "binary_view", "fixed_size_binary"})
TEXT = frozenset({"utf8", "large_utf8", "utf8_view", "string", "large_string"})
FLOATS = frozenset({"float16", "float32", "float64", "halffloat", "float", "double"})
LISTS = frozenset({"list", "large_list", "fixed_size_list", "list_view"})
MAX_DEPTH = 12


@dataclass(frozen=True, slots=True)
class ColumnComputation:
    """What computes a column: its `name`, and the columns that it reads."""

    kind: str
    name: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column or an inner field. `path` names it in queries, `names` are its parts."""

    name: str
    path: str
    names: tuple[str, ...]
    type: str
    nullable: bool
    metadata: Mapping[str, str]
    children: Sequence[Column]
    computed: ColumnComputation | None
    kind: str
    """What a grid shows it as: text, number, vector, binary, blob, nested, or other."""
    dimensions: int = 0


def read_columns(schema: Any, above: tuple[str, ...] = ()) -> list[Column]:
    """Return the columns of a schema (JsonArrowSchema), or the fields inside a type."""
    return [_column(entry, above) for entry in (schema.fields or ()) if len(above) < MAX_DEPTH]


def _column(entry: Any, above: tuple[str, ...]) -> Column:
    metadata = dict(entry.metadata or {})
    names = (*above, entry.name)
    return Column(
        name=entry.name,
        path=".".join(names),
        names=names,
        type=type_text(entry.type),
        nullable=entry.nullable,
        metadata={name: value for name, value in sorted(metadata.items()) if not declares_column(name)},
        children=read_columns(_inner(entry.type), names),
        computed=_computation(read_declaration(metadata)),
        kind=_kind(entry.type, metadata),
        dimensions=int(entry.type.length or 0) if entry.type.type == "fixed_size_list" else 0,
    )


def type_text(kind: Any, depth: int = 0) -> str:
    """Return a type as one reads it: `list<struct>`, `fixed_size_list<float32>[16]`."""
    inner = kind.fields or ()
    if kind.type in LISTS and inner and depth < MAX_DEPTH:
        text = f"{kind.type}<{type_text(inner[0].type, depth + 1)}>"
    else:
        text = kind.type
    return f"{text}[{kind.length}]" if kind.length and not text.startswith("decimal") else text


def vector_columns(columns: Iterable[Column]) -> list[Column]:
    """Return the columns that vectors can be compared with."""
    return [column for column in columns if column.kind == "vector"]


def text_columns(columns: Iterable[Column]) -> list[Column]:
    """Return the columns that have text."""
    return [column for column in columns if column.kind == "text"]


def _inner(kind: Any) -> Any:
    """Return the type whose fields are shown below a field: of a list its elements', unless these are plain."""
    if kind.type in LISTS and kind.fields:
        return _inner(kind.fields[0].type)
    return kind


def _kind(kind: Any, metadata: Mapping[str, str]) -> str:
    if any(name in metadata for name in BLOB_METADATA) or metadata.get("ARROW:extension:name") == "lance.blob.v2":
        return "blob"
    if kind.type in BINARY:
        return "binary"
    if kind.type in TEXT:
        return "text"
    if kind.type == "fixed_size_list" and kind.fields and kind.fields[0].type.type in FLOATS:
        return "vector"
    if kind.type in LISTS or kind.fields:
        return "nested"
    return (
        "number"
        if any(kind.type.startswith(name) for name in ("int", "uint", "float", "double", "decimal"))
        else "other"
    )


def _computation(declaration: Declaration | None) -> ColumnComputation | None:
    if declaration is None:
        return None
    if isinstance(declaration, ExpressionDeclaration):
        return ColumnComputation("expression", declaration.expression)
    if isinstance(declaration, FunctionDeclaration):
        return ColumnComputation(
            "function", f"{'.'.join(declaration.function)} version {declaration.version}", declaration.columns
        )
    return ColumnComputation("code", f"{declaration.name} {declaration.version}".strip(), tuple(declaration.inputs))


def embedding_functions(metadata: Mapping[str, str] | None) -> list[EmbeddingFunction]:
    """Return the embedding functions that lancedb's metadata of a schema declares; none where it cannot be read."""
    text = (metadata or {}).get("embedding_functions")
    if not text:
        return []
    try:
        return msgspec.json.decode(text, type=list[EmbeddingFunction])
    except msgspec.MsgspecError:
        return []


class EmbeddingFunction(msgspec.Struct, frozen=True):
    """An embedding function of a table: its name, and the columns that it reads and fills."""

    name: str
    source_column: str
    vector_column: str
