"""Columns of blobs: values that Lance stores apart from their rows, by an extension type or, before, by metadata.

Whoever rewrites rows has to know how many bytes they have: blobs are rewritten with their rows, and the sizes of data
files, which hold positions alone, do not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.fields import fields_in
from tiltyard.runtime.cache import lasting_facts

if TYPE_CHECKING:
    from collections.abc import Collection

    import lance


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
    return any(is_blob(field) or has_blobs(fields_in(field.type)) for field in fields)


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


_BATCH_ROWS = 8192


def measure_blobs(dataset: lance.LanceDataset, fragments: Iterable[int] | None = None) -> int:
    """Return the bytes of the blobs of all rows, or of these fragments; reads where they are, once in a process.

    Raises what Lance raises.
    """
    columns = [field.name for field in dataset.schema if has_blobs([field])]
    wanted = None if fragments is None else set(fragments)
    measured = [each for each in dataset.get_fragments() if wanted is None or each.fragment_id in wanted]
    return sum(_measure(dataset, fragment, columns) for fragment in measured) if columns else 0


def _measure(dataset: lance.LanceDataset, fragment: lance.LanceFragment, columns: list[str]) -> int:
    key = ("blobs", dataset.uri, *(str(file.path) for file in fragment.metadata.files))
    size: int = lasting_facts.get_or_make(key, lambda: _read_sizes(dataset, fragment, columns))
    return size


def _read_sizes(dataset: lance.LanceDataset, fragment: lance.LanceFragment, columns: list[str]) -> int:
    size = 0
    fields = [dataset.schema.field(name) for name in columns]
    for batch in dataset.scanner(columns=columns, fragments=[fragment], batch_size=_BATCH_ROWS).to_batches():
        for field in fields:
            size += sum(pc.sum(array).as_py() or 0 for array in _descriptors(batch.column(field.name), field))
    return size


def _descriptors(array: pa.Array, field: pa.Field) -> Iterator[pa.Array]:
    """Yield the sizes in the descriptors of a field, or of those within it."""
    if is_blob(field):
        yield pc.struct_field(array, "size")
    elif pa.types.is_struct(field.type):
        for inner in field.type:
            if has_blobs([inner]):
                yield from _descriptors(pc.struct_field(array, inner.name), inner)
    elif has_blobs([field]):
        yield from _descriptors(pc.list_flatten(array), field.type.field(0))
