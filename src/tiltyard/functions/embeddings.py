"""Vectors of texts, by a model that is here."""

from __future__ import annotations

import pyarrow as pa

from tiltyard.functions.embedding_models import open_model
from tiltyard.functions.model_files import digest_files, find_model
from tiltyard.functions.ready_made import Takes, ready_made
from tiltyard.model.refusals import RefusedError

MAX_BATCH_SIZE = 4096
"""Texts that a model may be asked to compute at once."""


def _vector_type(*, model: str, engine: str | None, normalize: bool, batch_size: int) -> pa.DataType:
    if not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise RefusedError(f"batch_size is {batch_size}: it is 1 to {MAX_BATCH_SIZE}.")
    return pa.list_(pa.float32(), open_model(find_model(model, engine)).dimensions)


def _fingerprint(*, model: str, engine: str | None, **_: object) -> str:
    return digest_files(find_model(model, engine))


@ready_made(
    version=1, takes=Takes.TEXT, result=_vector_type, result_text="vector of float32, as long as the model's",
    fingerprint=_fingerprint,
)  # fmt: skip
def embed_text(
    texts: pa.Array, *, model: str, engine: str | None = None, normalize: bool = True, batch_size: int = 32
) -> pa.Array:
    """Compute the vectors of texts by a model: of a package that ships one, or in a local folder.

    `engine` says what computes it, where its folder has files for several: static, onnx or sentence-transformers.
    Texts of like lengths are computed together, `batch_size` at once. With `normalize` vectors have the length 1. A
    text without tokens has no vector.
    """
    import numpy as np  # noqa: PLC0415  # as models: where they are used

    opened = open_model(find_model(model, engine))
    rows = [row for row, value in enumerate(texts.is_valid().to_pylist()) if value]
    values = texts.to_pylist()
    rows.sort(key=lambda row: len(values[row]))
    vectors = np.full((len(texts), opened.dimensions), np.nan, dtype=np.float32)
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        vectors[part] = opened.encode([values[row] for row in part])
    if normalize:
        with np.errstate(invalid="ignore", divide="ignore"):
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    is_missing = ~np.isfinite(vectors).all(axis=1)
    vectors[is_missing] = 0
    return pa.FixedSizeListArray.from_arrays(
        pa.array(vectors.ravel()), opened.dimensions, mask=pa.array(is_missing)
    )  # fmt: skip
