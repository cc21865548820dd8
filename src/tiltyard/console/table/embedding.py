"""Turn a text into a query vector, by the functions that the operator has set up for names of embedding functions.

A table names its embedding functions in metadata that whoever writes the table can write. So a name alone runs nothing:
the setting `embeddings` says which function of this server's own Python it stands for.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from tiltyard.console.table.schema_tree import EmbeddingFunction, embedding_functions

log = logging.getLogger("tiltyard.console")

MAX_TEXT = 10_000


def find_functions(metadata: Mapping[str, str] | None, settings: Mapping[str, str]) -> dict[str, EmbeddingFunction]:
    """Return the embedding function of each vector column of a table that a text can be turned into a vector for."""
    return {entry.vector_column: entry for entry in embedding_functions(metadata) if entry.name in settings}


def embed_text(text: str, function: EmbeddingFunction, settings: Mapping[str, str]) -> list[float]:
    """Return the vector of a text. Raises InvalidInputError, ServiceUnavailableError where the function fails."""
    if len(text) > MAX_TEXT:
        raise InvalidInputError(f"The text has {len(text)} characters: {MAX_TEXT} at most.")
    target = settings[function.name]
    try:
        vector = np.asarray(_load(target)([text])[0], dtype=np.float64)
    except Exception as error:  # the operator's own code may raise anything
        log.exception("the embedding function %s failed", target)
        raise ServiceUnavailableError(
            f"The embedding function '{function.name}' failed: the server's log says why; search by a vector instead."
        ) from error
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ServiceUnavailableError(f"The embedding function '{function.name}' returned no vector.")
    return [float(number) for number in vector]


@cache
def _load(target: str) -> Callable[[Sequence[str]], Any]:
    """Import `module:function`, which takes a list of texts and returns a vector each."""
    module, _, name = target.partition(":")
    function: Callable[[Sequence[str]], Any] = getattr(importlib.import_module(module), name)
    return function
