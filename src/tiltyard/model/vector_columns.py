"""Columns of vectors: what their indices can be, and how to train one on too few of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as of
from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

DISTANCES = {"l2": "l2", "euclidean": "l2", "cosine": "cosine", "dot": "dot", "hamming": "hamming"}
_BITS = {"SQ": (8,), "PQ": (4, 8), "RQ": tuple(range(1, 10)), "FLAT": ()}
_LONGEST_SUB_VECTOR = 16
_RQ_STEP = 8

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class VectorColumn:
    """Fixed-size lists of numbers; `several` of them in each row for a multivector column."""

    dimension: int
    element: pa.DataType
    several: bool

    @classmethod
    def of(cls, field: pa.Field) -> VectorColumn:
        """What a field holds. Raises InvalidInputError if it holds no vectors."""
        several = of.is_list(field.type)
        vector = field.type.value_type if several else field.type
        if isinstance(vector, pa.FixedShapeTensorType):
            vector = vector.storage_type
        if of.is_fixed_size_list(vector) and (of.is_floating(vector.value_type) or of.is_uint8(vector.value_type)):
            return cls(vector.list_size, vector.value_type, several)
        raise InvalidInputError(
            f"A vector index needs a column of fixed-size lists of floats or uint8, and '{field.name}' is {field.type}."
        )

    def checked(self, kind: str, quantizer: str, distance: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters that the request leaves open: distance and number of sub-vectors. Raises InvalidInputError."""
        found: dict[str, Any] = {"distance_type": self._distance(kind, quantizer, distance)}
        bits = given.get("num_bits")
        if bits is not None and bits not in _BITS[quantizer]:
            raise InvalidInputError(f"num_bits of {kind} is {' or '.join(map(str, _BITS[quantizer]))}, not {bits}.")
        if quantizer == "RQ" and self.dimension % _RQ_STEP:
            raise InvalidInputError(f"{kind} needs vectors whose length is a multiple of 8, not {self.dimension}.")
        if quantizer == "PQ":
            found["num_sub_vectors"] = self._sub_vectors(given.get("num_sub_vectors"), bits)
        return found

    def _distance(self, kind: str, quantizer: str, distance: str | None) -> str:
        bytewise = of.is_uint8(self.element)
        default = "hamming" if bytewise else "cosine" if self.several else "l2"
        found = DISTANCES.get((distance or default).lower())
        if found is None:
            raise InvalidInputError(f"Unknown distance type '{distance}': choose l2, cosine, dot or hamming.")
        if bytewise != (found == "hamming"):
            raise InvalidInputError("The distance of uint8 vectors is hamming, and hamming is for those alone.")
        if bytewise and quantizer != "FLAT":
            raise InvalidInputError(f"{kind} cannot index uint8 vectors: use IVF_FLAT or IVF_HNSW_FLAT.")
        if self.several and found != "cosine":
            raise InvalidInputError("The distance of columns with several vectors a row is cosine.")
        return found

    def _sub_vectors(self, asked: int | None, bits: int | None) -> int:
        """The number asked for, or the fewest that divide the vector into parts of up to 16 numbers."""
        step = 2 if bits == 4 else 1  # two codes of four bits share a byte
        if asked is not None:
            if self.dimension % asked or asked % step:
                even = " be even and" if step == 2 else ""
                raise InvalidInputError(f"num_sub_vectors has to{even} divide {self.dimension}, and {asked} does not.")
            return asked
        fewest = -(-self.dimension // _LONGEST_SUB_VECTOR)
        for count in range(fewest, self.dimension + 1):
            if self.dimension % count == 0 and count % step == 0:
                return count
        raise InvalidInputError("num_bits=4 needs vectors of even length: use 8.")

    def matrix(self, column: pa.ChunkedArray) -> Matrix:
        """The vectors of a column, one in each row; those that are null or not finite are left out."""
        values = column.combine_chunks().drop_null()
        if self.several:
            values = values.flatten().drop_null()
        flat = values.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        rows = flat.reshape(-1, self.dimension)
        kept: Matrix = rows[np.isfinite(rows).all(axis=1)]
        return kept


def model_of_few(column: VectorColumn, vectors: Matrix, options: Mapping[str, Any]) -> dict[str, Any]:
    """One centroid and, for PQ, a codebook that holds every part of every vector: an exact model.

    Lance trains a quantizer of 256 codes on 256 vectors or more, and an IVF on at least one; on fewer it records the
    index as empty or fails, so that nobody could ever wait for it.
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
