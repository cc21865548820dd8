"""Vector columns: find them in a schema, check the parameters of their indices, train an index on few vectors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as of
from lance_namespace.errors import InvalidInputError

from tiltyard.model.schemas.nested_types import storage_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DISTANCES = {"l2": "l2", "euclidean": "l2", "cosine": "cosine", "dot": "dot", "hamming": "hamming"}
_BITS = {"SQ": (8,), "PQ": (4, 8), "RQ": tuple(range(1, 10)), "FLAT": ()}
_MAX_SUB_VECTOR = 16
_RQ_STEP = 8
_ELEMENTS = (pa.float16(), pa.float32(), pa.float64(), pa.uint8(), pa.int8())
_PLAIN_NAME = re.compile(r"\w+")

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class VectorColumn:
    """A column of fixed-size lists of numbers; in a multivector column, each row has a list of them.

    `path` is spelled as Lance does (see `quote_path`), `element` is the type of the numbers.
    """

    path: str
    dimension: int
    element: pa.DataType
    is_multivector: bool

    @classmethod
    def from_type(cls, path: str, type_: pa.DataType) -> VectorColumn | None:
        """Return the vector column that a type is, None for other types. Extension types count as their storage."""
        type_ = storage_type(type_)
        is_multivector = of.is_list(type_) and of.is_fixed_size_list(storage_type(type_.value_type))
        vector = storage_type(type_.value_type) if is_multivector else type_
        if of.is_fixed_size_list(vector) and (element := storage_type(vector.value_type)) in _ELEMENTS:
            return cls(path, vector.list_size, element, is_multivector)
        return None

    @classmethod
    def for_index(cls, field: pa.Field) -> VectorColumn:
        """Return the vector column of a field. Raises InvalidInputError if no vector index can be built on it."""
        column = cls.from_type(quote_path((field.name,)), field.type)
        if column is None or not cls.is_indexable(field):
            raise InvalidInputError(
                f"A vector index needs a column of fixed-size lists of floats or uint8, and '{field.name}' is "
                f"{field.type}."
            )
        return column

    @classmethod
    def is_indexable(cls, field: pa.Field) -> bool:
        """Return whether a vector index can be built on a field."""
        column = cls.from_type(quote_path((field.name,)), field.type)
        return column is not None and not of.is_int8(column.element)

    def index_parameters(
        self, kind: str, quantizer: str, distance: str | None, requested: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return parameters of an index that have defaults: distance type and, for PQ, the number of sub-vectors.

        Raises InvalidInputError for parameters of the request that do not fit the column.
        """
        parameters: dict[str, Any] = {"distance_type": self._distance(kind, quantizer, distance)}
        bits = requested.get("num_bits")
        if bits is not None and bits not in _BITS[quantizer]:
            raise InvalidInputError(f"num_bits of {kind} is {' or '.join(map(str, _BITS[quantizer]))}, not {bits}.")
        if quantizer == "RQ" and self.dimension % _RQ_STEP:
            raise InvalidInputError(f"{kind} needs vectors whose length is a multiple of 8, not {self.dimension}.")
        if quantizer == "PQ":
            parameters["num_sub_vectors"] = self._sub_vectors(requested.get("num_sub_vectors"), bits)
        return parameters

    def _distance(self, kind: str, quantizer: str, distance: str | None) -> str:
        is_binary = of.is_uint8(self.element)
        default = "hamming" if is_binary else "cosine" if self.is_multivector else "l2"
        name = DISTANCES.get((distance or default).lower())
        if name is None:
            raise InvalidInputError(f"Unknown distance type '{distance}': choose l2, cosine, dot or hamming.")
        if is_binary != (name == "hamming"):
            raise InvalidInputError("The distance of uint8 vectors is hamming, and hamming is for those alone.")
        if is_binary and quantizer != "FLAT":
            raise InvalidInputError(f"{kind} cannot index uint8 vectors: use IVF_FLAT or IVF_HNSW_FLAT.")
        if self.is_multivector and name != "cosine":
            raise InvalidInputError("The distance of columns with several vectors a row is cosine.")
        return name

    def _sub_vectors(self, requested: int | None, bits: int | None) -> int:
        """Return the requested number, or the smallest that divides the vector into parts of up to 16 numbers."""
        step = 2 if bits == 4 else 1  # two codes of four bits share a byte
        if requested is not None:
            if self.dimension % requested or requested % step:
                even = " be even and" if step == 2 else ""
                raise InvalidInputError(
                    f"num_sub_vectors has to{even} divide {self.dimension}, and {requested} does not."
                )
            return requested
        fewest = -(-self.dimension // _MAX_SUB_VECTOR)
        for count in range(fewest, self.dimension + 1):
            if self.dimension % count == 0 and count % step == 0:
                return count
        raise InvalidInputError("num_bits=4 needs vectors of even length: use 8.")

    def matrix(self, column: pa.ChunkedArray) -> Matrix:
        """Return the vectors of a column as rows of a matrix; vectors that are null or not finite are left out."""
        values = column.combine_chunks().drop_null()
        if self.is_multivector:
            values = values.flatten().drop_null()
        flat = values.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        rows = flat.reshape(-1, self.dimension)
        finite: Matrix = rows[np.isfinite(rows).all(axis=1)]
        return finite


def vector_columns(schema: pa.Schema) -> dict[str, VectorColumn]:
    """Return the vector columns of a schema by path, those inside structs included."""
    return {column.path: column for field in schema for column in _vector_fields(field, ())}


def _vector_fields(field: pa.Field, parents: tuple[str, ...]) -> Iterator[VectorColumn]:
    names = (*parents, field.name)
    type_ = storage_type(field.type)
    if of.is_struct(type_):
        for child in type_:
            yield from _vector_fields(child, names)
    elif column := VectorColumn.from_type(quote_path(names), type_):
        yield column


def quote_path(names: tuple[str, ...]) -> str:
    """Spell a path as Lance does: names with other than word characters stand between backticks."""
    return ".".join(name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`" for name in names)


def train_exact_model(column: VectorColumn, vectors: Matrix, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return an exact model of few vectors: one centroid and, for PQ, a codebook of every part of every vector.

    Lance trains a quantizer of 256 codes on 256 vectors or more, and an IVF on at least one; on fewer it records the
    index as empty or fails, so that the index would never be ready.
    """
    rows = vectors if len(vectors) else np.zeros((1, column.dimension))
    if options["distance_type"] == "cosine":
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    kind = column.element.to_pandas_dtype()
    centroid = rows.mean(axis=0, keepdims=True)
    model: dict[str, Any] = {"num_partitions": 1, "ivf_centroids": centroid.astype(kind)}
    if parts := options.get("num_sub_vectors"):
        residuals = rows if options["distance_type"] == "dot" else rows - centroid
        split = residuals.reshape(len(rows), parts, -1).transpose(1, 0, 2)
        codes = np.arange(1 << options.get("num_bits", 8)) % len(rows)
        model["pq_codebook"] = split[:, codes, :].astype(kind)
    return model
