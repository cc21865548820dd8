"""Columns and indexes that a materialized view declares besides its query: refreshes compute and build them with rows.

They are part of the view's definition, by which they are refused once somebody changes them in the table's metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lance
import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.columns.computed_columns import (
    ExpressionDeclaration,
    UdfDeclaration,
    declared_inputs,
    read_declaration,
)
from tiltyard.model.columns.index_types import check_parameters, parse_index_type
from tiltyard.model.schemas.column_names import check_column_name
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import ViewDefinition, ViewKind
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.schema.computed_columns import check_inputs, computed_field, udf_field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context

MAX_VIEW_COLUMNS = 64
"""Columns that a view may have computed besides those of its query."""
MAX_VIEW_INDEXES = 32
"""Indexes that a view may declare: each refresh extends all of them."""
_NO_INDEX_FIELDS = ("id", "identity", "context", "branch", "replace")


def has_code(request: models.CreateMaterializedViewRequest) -> bool:
    """Return whether code of clients computes rows or columns of a view."""
    columns = request.columns or ()
    return request.udtf_spec is not None or any(entry.virtual_column is not None for entry in columns)


def runs_code(definition: ViewDefinition, view: pa.Schema) -> bool:
    """Return whether refreshes of a view run code of clients. Raises InvalidTableStateError."""
    if definition.kind in (ViewKind.CHUNKER, ViewKind.UDTF):
        return True
    columns = [name for name in definition.computed_columns if name in view.names]
    return any(isinstance(read_declaration(view.field(name).metadata), UdfDeclaration) for name in columns)


def check_kind(kind: ViewKind, request: models.CreateMaterializedViewRequest) -> None:
    """Raise UnsupportedOperationError for columns or indexes of a view that the server itself refreshes, and
    InvalidInputError for too many.
    """
    if kind is ViewKind.SELECT and (request.columns or request.indexes):
        raise UnsupportedOperationError(
            "Views of the kind 'select' compute no columns and build no indexes by themselves: make one of the kind "
            "'query', which Spark refreshes, or add columns and indexes to the view."
        )
    for name, entries, most in (
        ("columns", request.columns, MAX_VIEW_COLUMNS), ("indexes", request.indexes, MAX_VIEW_INDEXES)
    ):  # fmt: skip
        if len(entries or ()) > most:
            raise InvalidInputError(f"A view has {most} {name} besides its query's at most.")


def computed_fields(ctx: Context, schema: pa.Schema, entries: Sequence[models.AddColumnsEntry]) -> pa.Schema:
    """Return the schema of a query with the columns that are computed of it, in an order in which they can be.

    Raises InvalidInputError (a name that the query gives, an input that the view lacks, SQL that is none, two that read
    each other), UnsupportedOperationError (another way to compute a column).
    """
    names = [*schema.names]
    for entry in entries:
        check_column_name(entry.name)
        if entry.name.casefold() in map(str.casefold, names):
            giver = "the query" if entry.name in schema.names else "another column of the view"
            raise InvalidInputError(f"The column '{entry.name}' cannot be computed: {giver} has that name already.")
        names.append(entry.name)
    waiting = list(entries)
    while waiting:
        known = _empty(schema)
        left: list[models.AddColumnsEntry] = []
        for entry in waiting:
            others = {other.name for other in waiting if other is not entry}
            field = _field(ctx, known, entry, others)
            if field is None:
                left.append(entry)
            else:
                schema = schema.append(field)
        if len(left) == len(waiting):
            raise InvalidInputError(
                f"The columns {', '.join(entry.name for entry in left)} of the view read each other: let one of them "
                "read columns of the query alone."
            )
        waiting = left
    return schema


def _empty(schema: pa.Schema) -> lance.LanceDataset:
    """Return a table without rows, of which expressions get their types."""
    return lance.write_dataset(schema.empty_table(), "memory://", data_storage_version="2.2")


def _field(ctx: Context, known: lance.LanceDataset, entry: models.AddColumnsEntry, others: set[str]) -> pa.Field | None:
    """Return the field of a column; None if it reads one that is not known yet. Raises as `computed_fields` does."""
    if entry.expression is not None or entry.all_null:
        raise InvalidInputError(f"The column '{entry.name}' of a view is declared as 'computed' or 'virtual_column'.")
    if (entry.computed is None) == (entry.virtual_column is None):
        raise InvalidInputError(f"The column '{entry.name}' needs one of 'computed' (SQL) and 'virtual_column' (code).")
    if entry.virtual_column is not None:
        if others.intersection(entry.virtual_column.input_columns):
            return None
        field = udf_field(ctx, entry)
        for name in entry.virtual_column.input_columns:
            if name not in known.schema.names:
                raise InvalidInputError(
                    f"The column '{entry.name}' is computed of '{name}', which the view lacks: it has "
                    f"{', '.join(known.schema.names)}."
                )
        check_inputs(known, [field])
        return field
    text = entry.computed or ""
    check_expression(text, f"expression of '{entry.name}'")
    reads = declared_inputs(pa.schema([pa.field(name, pa.null()) for name in others]), ExpressionDeclaration(text))
    return None if reads else computed_field(known, entry.name, text)


def computed_text(schema: pa.Schema, names: Sequence[str]) -> str:
    """Return the computed columns of a new view as its definition has them; "" for none."""
    declared = {name: read_declaration(schema.field(name).metadata) for name in names}
    identities = {name: declaration.identity for name, declaration in declared.items() if declaration is not None}
    return msgspec.json.encode(identities).decode() if identities else ""


def index_text(schema: pa.Schema, entries: Sequence[models.CreateTableIndexRequest]) -> str:
    """Return the indexes of a new view as its definition has them; "" for none.

    Raises InvalidInputError for a column that the view lacks, a type or a parameter that does not fit, a name twice.
    """
    indexes: dict[str, dict[str, object]] = {}
    for entry in entries:
        if any(getattr(entry, name) is not None for name in _NO_INDEX_FIELDS):
            raise InvalidInputError(f"An index of a view has none of {', '.join(_NO_INDEX_FIELDS)}: leave them out.")
        if entry.column not in schema.names:
            raise InvalidInputError(
                f"The view has no column '{entry.column}' to index: it has {', '.join(schema.names)}."
            )
        kind = parse_index_type(entry.index_type)
        check_parameters(kind, schema.field(entry.column), entry)
        name = entry.name or f"{entry.column}_idx"
        if name in indexes:
            raise InvalidInputError(f"Two indexes of the view are called '{name}': name one of them otherwise.")
        fields = {field: getattr(entry, field) for field in entry.__struct_fields__}
        given = {field: value for field, value in fields.items() if value is not None}
        indexes[name] = {**given, "index_type": kind.value, "name": name}
    return msgspec.json.encode(list(indexes.values())).decode() if indexes else ""


def describe_columns(definition: ViewDefinition, view: pa.Schema) -> list[models.MaterializedViewColumn]:
    """Return the columns that refreshes compute: by which code or SQL, and of which columns."""
    described = []
    for name in definition.computed_columns:
        declaration = read_declaration(view.field(name).metadata) if name in view.names else None
        if declaration is None:
            continue
        inputs = list(declared_inputs(view, declaration))
        described.append(
            models.MaterializedViewColumn(
                name=name,
                function=declaration.name if isinstance(declaration, UdfDeclaration) else None,
                expression=declaration.expression if isinstance(declaration, ExpressionDeclaration) else None,
                inputs=[each for each in inputs if each != name],
            )
        )
    return described
