"""Columns of blobs: values that Lance stores apart from their rows, by an extension type or, before, by metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.model.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

BLOB_TYPE = "lance.blob.v2"
_EXTENSION = b"ARROW:extension:name"
_ENCODING = b"lance-encoding:blob"
"""The metadata of a field of large binary by which older tables have blobs."""


def is_blob_v2(field: pa.Field) -> bool:
    """Return whether a field has Lance's extension type of blobs, or its name in its metadata."""
    return (
        getattr(field.type, "extension_name", None) == BLOB_TYPE
        or (field.metadata or {}).get(_EXTENSION) == BLOB_TYPE.encode()
    )


def is_blob(field: pa.Field) -> bool:
    """Return whether a field holds blobs, of either kind."""
    return is_blob_v2(field) or (field.metadata or {}).get(_ENCODING) == b"true"


def is_stored_as_read(field: pa.Field) -> bool:
    """Return whether Lance stores a field's values in the form in which they are read: not blobs and extension types.

    Fields inside it are not looked at.
    """
    if isinstance(field.type, pa.BaseExtensionType):
        return False
    return not any(key.startswith((b"ARROW:extension", _ENCODING)) for key in field.metadata or {})


def has_blobs(fields: Iterable[pa.Field]) -> bool:
    """Return whether a field, or one inside it, holds blobs."""
    return any(is_blob(field) or has_blobs(_children(field.type)) for field in fields)


def check_no_blobs(schema: pa.Schema, columns: Collection[str] | None = None) -> None:
    """Raise RefusedError for a column of blobs among these (None: all).

    A scan returns the positions of blobs, not their bytes.
    """
    for field in schema:
        if (columns is None or field.name in columns) and has_blobs([field]):
            raise RefusedError(f"Column '{field.name}' holds blobs, which jobs do not read: name the others alone.")


def is_castable_to_blobs(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of a type are bytes, or blobs with other fields, and the target Lance's type of blobs."""
    is_bytes = any(
        check(source)
        for check in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
            pa.types.is_null,
        )
    )
    return getattr(target, "extension_name", None) == BLOB_TYPE and (
        is_bytes or getattr(source, "extension_name", None) == BLOB_TYPE
    )


def cast_to_blobs(values: pa.Array, target: pa.ExtensionType) -> pa.Array:
    """Return bytes as blobs of Lance's type, which are stored with the table, or blobs with the fields of another type.

    A column has two fields (`data`, `uri`), or four: lancedb 0.41 adds a range of the URI. Raises ArrowInvalid for a
    range that has no place in the column.
    """
    fields = list(target.storage_type)
    given = {fields[0].name: values}
    if isinstance(values.type, pa.BaseExtensionType):
        names = [field.name for field in values.type.storage_type]
        given = dict(zip(names, values.storage.flatten(), strict=True))
    lost = given.keys() - {field.name for field in fields}
    if filled := sorted(name for name in lost if given[name].null_count < len(values)):
        raise pa.ArrowInvalid(f"this column's blobs have no '{filled[0]}'")
    columns = [
        given[field.name].cast(field.type) if field.name in given else pa.nulls(len(values), field.type)
        for field in fields
    ]
    storage = pa.StructArray.from_arrays(columns, fields=fields, mask=values.is_null())
    return pa.ExtensionArray.from_storage(target, storage)


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]
