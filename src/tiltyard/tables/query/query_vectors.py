"""Query vectors: which column they search, and their values as that column wants them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.storage.errors import column_not_found

_PLAIN = re.compile(r"\w+")
_INTEGERS = {pa.uint8(): (0, 255), pa.int8(): (-128, 127)}
_FLOATS = (pa.float16(), pa.float32(), pa.float64())

Vector = Sequence[float]


@dataclass(frozen=True, slots=True)
class VectorColumn:
    """A column of vectors; in a `several` one, each row holds a list of them."""

    path: str
    dimension: int
    element: pa.DataType
    several: bool

    def values(self, vector: Vector) -> pa.Array:
        """A query vector for this column.

        Raises InvalidInputError for another dimension, or numbers that the column's type cannot hold.
        """
        if len(vector) != self.dimension:
            raise InvalidInputError(
                f"Vectors of column '{self.path}' have {self.dimension} dimensions, the query vector {len(vector)}."
            )
        numbers = np.asarray(vector, dtype=np.float64)
        if self.element in _INTEGERS:
            low, high = _INTEGERS[self.element]
            if not ((numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))).all():
                raise InvalidInputError(
                    f"Column '{self.path}' holds integers from {low} to {high}: so must the query vector."
                )
            return pa.array(numbers.astype(self.element.to_pandas_dtype()))
        kind = np.float64 if self.element == pa.float64() else np.float32
        with np.errstate(over="ignore"):
            numbers = numbers.astype(kind, copy=False)
        if not np.isfinite(numbers).all():
            raise InvalidInputError("A query vector holds finite numbers within the range of its column's type.")
        return pa.array(numbers)


VectorColumns = Mapping[str, VectorColumn]


def vector_columns(schema: pa.Schema) -> VectorColumns:
    """The vector columns of a schema by path, those inside structs included."""
    return {column.path: column for field in schema for column in _inside(field, ())}


def find_column(columns: VectorColumns, names: Sequence[str], named: str | None, dimension: int) -> VectorColumn:
    """The column to search: the one named, else the only one of the query vector's dimension.

    `names` are all columns of the table. Raises TableColumnNotFoundError, InvalidInputError.
    """
    if named is not None:
        return _named(columns, names, named)
    fitting = [column for column in columns.values() if column.dimension == dimension]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed = ", ".join(column.path for column in fitting)
        raise InvalidInputError(
            f"Several columns hold vectors of {dimension} dimensions: name one as vector_column: {listed}."
        )
    if not columns:
        raise InvalidInputError("This table has no vector column to search.")
    listed = ", ".join(f"{column.path} ({column.dimension})" for column in columns.values())
    raise InvalidInputError(f"No column holds vectors of {dimension} dimensions; the vector columns are {listed}.")


def _named(columns: VectorColumns, names: Sequence[str], name: str) -> VectorColumn:
    for candidate in (name, _path((name,))):
        if candidate in columns:
            return columns[candidate]
    if name in names:
        listed = ", ".join(columns) or "none"
        raise InvalidInputError(f"Column '{name}' holds no vectors; the vector columns of this table: {listed}.")
    raise column_not_found(name, names)


def _inside(field: pa.Field, above: tuple[str, ...]) -> Iterator[VectorColumn]:
    path = (*above, field.name)
    kind = _storage(field.type)
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _inside(inner, path)
        return
    several = pa.types.is_list(kind) and pa.types.is_fixed_size_list(_storage(kind.value_type))
    vector = _storage(kind.value_type) if several else kind
    if pa.types.is_fixed_size_list(vector) and (element := _storage(vector.value_type)) in (*_FLOATS, *_INTEGERS):
        yield VectorColumn(_path(path), vector.list_size, element, several)


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _path(names: tuple[str, ...]) -> str:
    """Lance's spelling of a path: names with other than word characters stand between backticks."""
    return ".".join(name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`" for name in names)
