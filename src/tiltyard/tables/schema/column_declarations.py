"""Code declarations of columns that bypass AlterTableAddColumns: with inserted rows, or in a manifest a client staged.

A backfill runs the code that a column declares, so only a principal who may run code over a table may declare some.
Rows are values and nothing else: what their schema declares is removed. A manifest is committed as it is, or refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableBranchNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import authorize_namespace, authorize_table
from tiltyard.model.branches import MAIN
from tiltyard.model.columns.computed_columns import PREFIX
from tiltyard.model.principals import Privilege
from tiltyard.model.schemas.column_names import check_column_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.ids import Id
    from tiltyard.storage.manifests.manifest_format import CodeDeclaration
    from tiltyard.store import TableRecord

_KEY_PREFIX = PREFIX.encode()
_IMAGE_KEY = f"{PREFIX}image".encode()


def without_declarations(schema: pa.Schema) -> pa.Schema | None:
    """Return a schema without its columns' code declarations; None if there are none."""
    if not any(_code(field.metadata) for field in schema):
        return None
    return pa.schema([field.with_metadata(_without_code(field.metadata)) for field in schema], schema.metadata)


def check_declared(
    ctx: Context, path: Id, table: TableRecord, branch: Branch, declared: Iterable[CodeDeclaration]
) -> None:
    """Check that the code a staged manifest declares is the table's already, or that the caller may declare it.

    A table of id 0 is one that the same request declares. Raises UnsupportedOperationError (code of clients is switched
    off), PermissionDeniedError, InvalidInputError (an image that is not in the settings).
    """
    new = frozenset(declared)
    if not new or not (new := new - _existing_code(ctx, table, branch)):
        return
    if not ctx.settings.udfs:
        raise UnsupportedOperationError(
            f"The manifest of {path} declares code that computes columns, which is switched off: the server's "
            "setting 'udfs' allows it."
        )
    if not ctx.is_unchecked:
        if table.id:
            authorize_table(ctx, path, Privilege.RUN_UDFS.value)
        else:
            authorize_namespace(ctx, path.parent, Privilege.RUN_UDFS.value)
    for image in (value.decode(errors="replace") for code in new for key, value in code if key == _IMAGE_KEY):
        if image not in ctx.settings.udf_images:
            raise InvalidInputError(
                f"The manifest of {path} declares code for the image '{image}', which is not among those of "
                "the server's setting 'udf_images'."
            )


def check_quoted(ctx: Context, table: TableRecord, branch: Branch, names: Iterable[str]) -> None:
    """Raise InvalidInputError for a new column whose name could not be read again (`check_column_name`).

    One that the table has already, as when it was registered, blocks no commit.
    """
    existing = {field.name for field in _schema(ctx, table, branch)}
    for name in names:
        if name not in existing:
            check_column_name(name)


def _existing_code(ctx: Context, table: TableRecord, branch: Branch) -> frozenset[CodeDeclaration]:
    """Return the code that a table declares."""
    return frozenset(_code(field.metadata) for field in _schema(ctx, table, branch))


def _schema(ctx: Context, table: TableRecord, branch: Branch) -> pa.Schema:
    """Return the schema of a table, without columns if it has no version yet."""
    if not table.id:
        return pa.schema([])
    try:
        return ctx.storage.datasets.open_for_reading(table.location, branch).schema
    except InvalidTableStateError:  # it has no version yet
        return pa.schema([])
    except TableBranchNotFoundError:  # this very commit creates it, from main
        return _schema(ctx, table, MAIN)


def _code(metadata: Mapping[bytes, bytes] | None) -> CodeDeclaration:
    return frozenset(pair for pair in (metadata or {}).items() if pair[0].startswith(_KEY_PREFIX))


def _without_code(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    return {key: value for key, value in (metadata or {}).items() if not key.startswith(_KEY_PREFIX)}
