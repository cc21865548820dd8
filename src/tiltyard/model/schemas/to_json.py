"""Serialize Arrow schemas to JSON, in either dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import UnsupportedOperationError

from tiltyard.model.schemas.type_names import EXTENSION_DATA, EXTENSION_NAME, Dialect
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTS = {
    pa.lib.Type_LIST: "list",
    pa.lib.Type_LARGE_LIST: "large_list",
    pa.lib.Type_FIXED_SIZE_LIST: "fixed_size_list",
    pa.lib.Type_LIST_VIEW: "list_view",
    pa.lib.Type_LARGE_LIST_VIEW: "large_list_view",
}
_SPECIFICATION = Dialect(remote=False)
_REMOTE = Dialect(remote=True)


def to_json(schema: pa.Schema) -> models.JsonArrowSchema:
    """Serialize a schema in the specification's dialect; `from_json` returns the same schema for it.

    Raises UnsupportedOperationError for types that Lance cannot store either (unions, run-end encoding, intervals).
    """
    return _schema(schema, _SPECIFICATION)


def to_remote_json(schema: pa.Schema) -> dict[str, Any]:
    """Serialize a schema in the remote dialect; lancedb reads the same schema from it.

    Two kinds of types are exceptions, for which lancedb 0.40 has no name: a map is written as the list of structs that
    it consists of, and a dictionary whose values have parameters (decimals, timestamps, nested) as its values, so that
    such a table can be opened at all. Raises what `to_json` raises.
    """
    document: dict[str, Any] = msgspec.to_builtins(_schema(schema, _REMOTE))
    return document


def _schema(schema: pa.Schema, dialect: Dialect) -> models.JsonArrowSchema:
    return models.JsonArrowSchema(
        fields=[_field(field, dialect) for field in schema], metadata=_text(schema.metadata) or None
    )


def _text(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Decode metadata; bytes that are not UTF-8, which JSON cannot hold, are escaped."""
    return {
        key.decode(errors="backslashreplace"): value.decode(errors="backslashreplace")
        for key, value in (metadata or {}).items()
    }


def _field(field: pa.Field, dialect: Dialect) -> models.JsonArrowField:
    kind, metadata = field.type, _text(field.metadata)
    if isinstance(kind, pa.BaseExtensionType):
        metadata |= _extension(kind)
        kind = kind.storage_type
    return models.JsonArrowField(
        name=field.name, nullable=field.nullable, type=_type(kind, dialect), metadata=metadata or None
    )


def _extension(kind: pa.BaseExtensionType) -> dict[str, str]:
    """Return the metadata by which an extension type differs from its storage type."""
    if isinstance(kind, pa.FixedShapeTensorType):  # pyarrow does not expose the serialization of Arrow's own types
        parts = {"shape": kind.shape, "dim_names": kind.dim_names, "permutation": kind.permutation}
        data = msgspec.json.encode({name: part for name, part in parts.items() if part is not None})
    elif isinstance(kind, pa.OpaqueType):
        data = msgspec.json.encode({"type_name": kind.type_name, "vendor_name": kind.vendor_name})
    elif isinstance(kind, pa.ExtensionType):
        data = kind.__arrow_ext_serialize__()
    else:
        data = b""
    return {EXTENSION_NAME: kind.extension_name, EXTENSION_DATA: data.decode(errors="backslashreplace")}


def _type(kind: pa.DataType, dialect: Dialect) -> models.JsonArrowDataType:
    if pa.types.is_struct(kind):
        return models.JsonArrowDataType(type="struct", fields=[_field(child, dialect) for child in kind])
    if name := _LISTS.get(kind.id):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        return models.JsonArrowDataType(type=name, fields=[_field(kind.value_field, dialect)], length=length)
    if pa.types.is_map(kind):
        return _map(kind, dialect)
    if pa.types.is_dictionary(kind):
        return _dictionary(kind, dialect)
    try:
        name, length = dialect.name(kind)
    except KeyError as error:
        raise UnsupportedOperationError(f"Arrow's type {kind} cannot be stored in a Lance table.") from error
    return models.JsonArrowDataType(type=name, length=length)


def _map(kind: pa.MapType, dialect: Dialect) -> models.JsonArrowDataType:
    pair = models.JsonArrowDataType(
        type="struct", fields=[_field(kind.key_field, dialect), _field(kind.item_field, dialect)]
    )
    entries = models.JsonArrowField(name="entries", nullable=False, type=pair)
    name = "list" if dialect.remote else "map:sorted" if kind.keys_sorted else "map"
    return models.JsonArrowDataType(type=name, fields=[entries])


def _dictionary(kind: pa.DictionaryType, dialect: Dialect) -> models.JsonArrowDataType:
    """Serialize `dict:<values>:<indices>:<ordered>`, with the values' own fields and length."""
    values = _type(kind.value_type, dialect)
    if dialect.remote and (":" in values.type or values.fields or values.length is not None):
        return values
    indices, _ = dialect.name(kind.index_type)
    values.type = f"dict:{values.type}:{indices}:{str(kind.ordered).lower()}"
    return values
