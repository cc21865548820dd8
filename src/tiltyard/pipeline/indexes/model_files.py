"""Files of index models, and of their training: matrices as columns of Lance files, in a folder below the table's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter

from tiltyard.pipeline.sources.filesystem import delete_files
from tiltyard.pipeline.table_location import TableLocation

if TYPE_CHECKING:
    from tiltyard.model.columns.vector_columns import Matrix

VALUES = "values"
"""The column of a file that has one."""


@dataclass(frozen=True, slots=True)
class IndexModel:
    """The trained model that all segments of a vector index share, in Lance files of its own folder below the table's.

    It is a file, since a hundred thousand centroids are 50 MB: too much to send with each task. `folder` lies where
    garbage collection looks for files of no index. `sub_vectors` is 0 where there is no codebook.
    """

    folder: str
    partitions: int
    sub_vectors: int

    @property
    def files(self) -> list[str]:
        """Return the model's files, below the table's folder."""
        return [f"{self.folder}/{name}.lance" for name in ("centroids", *(["codebook"] if self.sub_vectors else []))]

    def write(self, location: TableLocation, *arrays: pa.Array) -> None:
        """Write centroids and codebook, durably. Raises OSError."""
        for file, array in zip(self.files, arrays, strict=True):
            write_columns(location, file, self.columns(array))

    @staticmethod
    def columns(array: pa.Array) -> Mapping[str, pa.Array]:
        """Return the columns of a file of the model, which has one array."""
        return {VALUES: array}

    def read_centroids(self, location: TableLocation) -> Matrix:
        """Read the centroids as float32. Raises OSError."""
        return read_matrix(location, self.files[0]).astype(np.float32)

    def arguments(self, location: TableLocation) -> dict[str, Any]:
        """Read the model, as arguments of pylance. Raises OSError."""
        arrays = [
            open_column(location, file).read_all().to_table().column(VALUES).combine_chunks() for file in self.files
        ]
        ivf = {"num_partitions": self.partitions, "ivf_centroids": arrays[0]}
        return {**ivf, "num_sub_vectors": self.sub_vectors, "pq_codebook": arrays[1]} if self.sub_vectors else ivf

    def delete(self, location: TableLocation) -> None:
        """Delete the model's files."""
        delete_files([f"{location.uri}/{file}" for file in self.files], location.options)


def quoted_path(path: str, schema: pa.Schema) -> str:
    """Return a path in Lance's SQL; the name of a top-level column is quoted, for it may be a keyword."""
    return f"`{path}`" if path in schema.names else path


def write_columns(location: TableLocation, file: str, columns: Mapping[str, pa.Array]) -> None:
    """Write a file below the table's folder, durably. Raises OSError."""
    rows = pa.record_batch(list(columns.values()), list(columns))
    path, options = f"{location.uri}/{file}", dict(location.options) or None
    with LanceFileWriter(path, rows.schema, storage_options=options, **location.refresh_arguments) as writer:
        writer.write_batch(rows)
    location.make_durable([file])


def open_column(location: TableLocation, file: str, column: str = VALUES) -> LanceFileReader:
    """Open a file below the table's folder to read one of its columns. Raises OSError."""
    options = dict(location.options) or None
    return LanceFileReader(f"{location.uri}/{file}", options, [column], **location.refresh_arguments)


def write_matrix(location: TableLocation, file: str, matrix: Matrix) -> None:
    """Write a matrix of float32, durably. Raises OSError."""
    write_columns(location, file, {VALUES: to_vectors(matrix, pa.float32())})


def read_matrix(
    location: TableLocation, file: str, column: str = VALUES, *, first: int = 0, count: int | None = None
) -> Matrix:
    """Read rows of a matrix of float32: all, or `count` from `first` on. Raises OSError."""
    reader = open_column(location, file, column)
    count = reader.num_rows() - first if count is None else count
    if count == 0:
        kind = reader.metadata().schema.field(column).type
        return np.empty((0, kind.list_size), np.float32)
    return _to_matrix(reader.read_range(first, count, batch_size=count).to_table().column(column))


def read_evenly(location: TableLocation, file: str, count: int, *, first: int = 0, rows: int) -> Matrix:
    """Read `count` rows of a matrix of float32 at even distances, among `rows` from `first` on. Raises OSError."""
    if count >= rows:
        return read_matrix(location, file, first=first, count=rows)
    positions = (first + np.arange(count, dtype=np.int64) * rows // max(1, count)).tolist()
    if not positions:
        return read_matrix(location, file, count=0)
    return _to_matrix(open_column(location, file).take_rows(positions, batch_size=count).to_table().column(VALUES))


def to_vectors(matrix: Matrix, element: pa.DataType) -> pa.Array:
    """Return the rows of a matrix as vectors of some type of numbers."""
    flat = np.ascontiguousarray(matrix).reshape(-1).astype(element.to_pandas_dtype())
    return pa.FixedSizeListArray.from_arrays(pa.array(flat, element), matrix.shape[1])


def _to_matrix(column: pa.ChunkedArray) -> Matrix:
    vectors = column.combine_chunks()
    matrix: Matrix = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(vectors), vectors.type.list_size)
    return matrix
