"""The interface of a Hive Metastore: the fields of its structs, and its methods with the exceptions that they declare.

Numbers and names are those of `hive_metastore.thrift`; a struct here has the fields alone that mounts read or write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiltyard.mounts.thrift.client import ThriftClient
from tiltyard.mounts.thrift.structs import Struct, struct, struct_list, text, text_map


class DatabaseFields:
    """Numbers of a Database's fields."""

    NAME, LOCATION, PARAMETERS, CATALOG = 1, 3, 4, 8


class TableFields:
    """Numbers of a Table's fields."""

    NAME, DATABASE, OWNER, STORAGE, PARAMETERS, TYPE, CATALOG = 1, 2, 3, 7, 9, 12, 17


class CatalogFields:
    """Numbers of a Catalog's fields."""

    NAME, LOCATION = 1, 3


class StorageFields:
    """Numbers of a StorageDescriptor's fields."""

    COLUMNS, LOCATION, INPUT_FORMAT, OUTPUT_FORMAT, SERDE = 1, 2, 3, 4, 7


_EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "alter_database": ("MetaException", "NoSuchObjectException"),
    "alter_table_with_environment_context": ("InvalidOperationException", "MetaException"),
    "create_catalog": ("AlreadyExistsException", "InvalidObjectException", "MetaException"),
    "create_database": ("AlreadyExistsException", "InvalidObjectException", "MetaException"),
    "create_table": ("AlreadyExistsException", "InvalidObjectException", "MetaException", "NoSuchObjectException"),
    "drop_database": ("NoSuchObjectException", "InvalidOperationException", "MetaException"),
    "drop_table": ("NoSuchObjectException", "MetaException"),
    "get_all_tables": ("MetaException",),
    "get_catalog": ("NoSuchObjectException", "MetaException"),
    "get_catalogs": ("MetaException",),
    "get_databases": ("MetaException",),
    "get_database": ("NoSuchObjectException", "MetaException"),
    "get_all_databases": ("MetaException",),
    "get_table": ("MetaException", "NoSuchObjectException"),
    "get_table_objects_by_name": ("MetaException", "InvalidOperationException", "UnknownDBException"),
    "get_table_names_by_filter": ("MetaException", "InvalidOperationException", "UnknownDBException"),
}
"""The exceptions that each method declares, from field 1 of its result on."""


class MetastoreError(Exception):
    """An exception that the metastore has declared, and answered."""

    def __init__(self, exception: str, message: str) -> None:
        super().__init__(message)
        self.exception = exception


class Metastore:
    """Calls a metastore's methods. Safe to use from several threads."""

    def __init__(self, client: ThriftClient) -> None:
        """Send nothing yet."""
        self._client = client

    def read(self, method: str, arguments: Mapping[int, tuple[int, Any]]) -> Struct:
        """Return the result of a method that changes nothing. Raises MetastoreError, and what `ThriftClient` raises."""
        return self._call(method, arguments, is_read=True)

    def write(self, method: str, arguments: Mapping[int, tuple[int, Any]]) -> None:
        """Call a method that changes something. Raises as `read` does."""
        self._call(method, arguments, is_read=False)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _call(self, method: str, arguments: Mapping[int, tuple[int, Any]], *, is_read: bool) -> Struct:
        """Return a method's result. Raises MetastoreError for an exception that it declares."""
        result = self._client.call(method, Struct(arguments), is_read=is_read)
        for field, exception in enumerate(_EXCEPTIONS[method], 1):
            if field in result:
                raise MetastoreError(exception, result.struct(field).text(1) or "")
        return result


def placeholder_storage(location: str) -> Struct:
    """Return what every table of Hive needs: here a column that says that this is no table for Hive."""
    column = Struct({1: text("__placeholder_id"), 2: text("bigint")})
    serde = Struct({2: text("org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"), 3: text_map({})})
    return Struct(
        {
            StorageFields.COLUMNS: struct_list([column]),
            StorageFields.LOCATION: text(location),
            StorageFields.INPUT_FORMAT: text("org.apache.hadoop.mapred.TextInputFormat"),
            StorageFields.OUTPUT_FORMAT: text("org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"),
            StorageFields.SERDE: struct(serde),
        }
    )
