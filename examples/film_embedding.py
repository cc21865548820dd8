"""Embeddings from the package `wordllama`, whose model of 256 dimensions lies in the package: nothing is fetched.

`embed` is what the pipeline calls (films.yaml): in Spark's Python workers, with the rows of a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
from wordllama import WordLlama, WordLlamaInference

logging.getLogger().setLevel(logging.WARNING)  # importing wordllama turns every logger up to INFO

DIMENSIONS = 256


def embed(films: pa.RecordBatch) -> pa.RecordBatch:
    """The films with a column `vector`: what their title and genre mean."""
    pairs = zip(films["title"].to_pylist(), films["genre"].to_pylist(), strict=True)
    vectors = embedded([f"{title}. {genre}" for title, genre in pairs])
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS)
    return films.append_column("vector", column)


def embedded(texts: Sequence[str]) -> np.ndarray:
    """One row of 256 float32 for each text: vectors of length one whose angle tells how near their meanings are."""
    return np.asarray(_model().embed(list(texts), norm=True), dtype=np.float32)


@cache
def _model() -> WordLlamaInference:
    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    # Without `cache_dir`, it would look for the model on the network.
    return WordLlama.load(cache_dir=Path(spec.origin).parent, disable_download=True)
