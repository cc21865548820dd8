"""The rows of the sample: what is known of each film, a sentence about it, its embedding, and first searches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FOLDER = Path(__file__).parent
FILMS, VECTORS = FOLDER / "films.jsonl", FOLDER / "vectors.npy"
DIMENSIONS = 256
EMBEDDING_FUNCTION = "tiltyard-sample"
"""The name of the embedding function in the table's metadata; `embedding.embed` is the function."""

_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("title", pa.string()),
        ("year", pa.int32()),
        ("about", pa.string()),
        ("genres", pa.string()),
        ("director", pa.string()),
        ("country", pa.string()),
        ("minutes", pa.int32()),
        ("vector", pa.list_(pa.float32(), DIMENSIONS)),
    ],
    metadata={
        "embedding_functions": json.dumps(
            [{"name": EMBEDDING_FUNCTION, "source_column": "about", "vector_column": "vector", "model": {}}]
        )
    },
)


def read_films() -> pa.Table:
    """Return the films as a table."""
    facts = read_facts()
    vectors = read_vectors()[: len(facts)]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS)
    rows = [{**film, "genres": ", ".join(film["genres"])} for film in facts]
    table = pa.Table.from_pylist(rows, pa.schema(list(_SCHEMA)[:-1]))
    return table.append_column(_SCHEMA.field("vector"), column).cast(_SCHEMA)


def read_facts() -> list[dict[str, Any]]:
    """Return what is known of each film."""
    return [json.loads(line) for line in FILMS.read_text(encoding="utf-8").splitlines()]


@cache
def read_vectors() -> npt.NDArray[np.float32]:
    """Return the embeddings of all films, then those of the texts of `searches.TEXTS`: of length one, in float32."""
    vectors: npt.NDArray[np.float32] = np.load(VECTORS, allow_pickle=False).astype(np.float32)
    return vectors


def embedded_text(film: Mapping[str, Any]) -> str:
    """Return the text that a film's embedding is of."""
    genres: Sequence[str] = film["genres"]
    return f"{film['about']} {', '.join(genres)}"


TEXTS = (
    "a lonely robot in love",
    "ghosts in an old house",
    "artificial intelligence that wants to be human",
    "children lost in nature",
    "an old man looks back on his life",
)
"""Texts whose embeddings are bundled, so that they can be searched without the model."""
WORDS = "murder train"
LIKED_FILM = "Spirited Away"
_ELSEWHERE = "country != 'Japan'"


@dataclass(frozen=True, slots=True)
class Example:
    """A search: what it is called, what it looks for, and the parameters of its page in the console."""

    kind: str
    text: str
    parameters: Mapping[str, str]


def example_searches(find_row: Callable[[str], int | None]) -> Iterable[Example]:
    """Yield the searches; `find_row` returns the id of the row that a filter selects, None where there is none."""
    yield Example("by meaning", f'"{TEXTS[0]}"', {"mode": "vector", "meaning": TEXTS[0]})
    yield Example("by words", f'"{WORDS}"', {"mode": "text", "text": WORDS})
    row = find_row(f"title = '{LIKED_FILM}'")
    if row is not None:
        parameters = {"mode": "like", "row": str(row), "filter": _ELSEWHERE}
        yield Example("like a film, filtered", f"{LIKED_FILM}, but not from Japan", parameters)
