"""Films to search: real rows from the package `bokeh-sampledata`, real embeddings from the package `wordllama`.

Both packages carry what they give (a SQLite file, a model of 256 dimensions), so nothing is fetched when this runs.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
from wordllama import WordLlama

logging.getLogger().setLevel(logging.WARNING)  # importing wordllama turns every logger up to INFO

DIMENSIONS = 256

QUERY = """
    SELECT omdb.imdbID AS id, Title AS title, Year AS year, coalesce(Genre, '') AS genre,
           coalesce(Director, '') AS director, coalesce("Cast", '') AS actors,
           coalesce(Country, '') AS country, coalesce(Language, '') AS language,
           coalesce(Runtime, 0) AS minutes, coalesce(Reviews, 0) AS reviews, coalesce(Meter, 0) AS score
    FROM omdb JOIN tomatoes USING (ID)
    ORDER BY omdb.ID
"""


class Embedder:
    """Turns texts into vectors of length one whose angle tells how near their meanings are."""

    def __init__(self) -> None:
        # The model lies in the package's own folder; without `cache_dir` it would look for it on the network.
        self._model = WordLlama.load(cache_dir=_package_folder("wordllama"), disable_download=True)

    def __call__(self, texts: list[str]) -> np.ndarray:
        """One row of 256 float32 for each text."""
        vectors = self._model.embed(texts, norm=True)
        return np.asarray(vectors, dtype=np.float32)


def load_films(embed: Embedder) -> pa.Table:
    """17,472 films: what is known of each, one sentence that says it, and the embedding of title and genre."""
    database = _package_folder("bokeh_sampledata") / "_data" / "movies.db"
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(QUERY)]
    vectors = embed([f"{row['title']}. {row['genre']}" for row in rows])
    films = pa.Table.from_pylist(rows)
    return films.append_column("description", pa.array([describe(row) for row in rows])).append_column(
        "vector", pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS)
    )


def describe(film: dict[str, object]) -> str:
    """A film in one sentence, which the full-text index reads."""
    parts = [f"{film['title']} ({film['year']})"]
    if film["genre"]:
        parts.append(f"{film['genre']}")
    if film["director"]:
        parts.append(f"directed by {film['director']}")
    if film["actors"]:
        parts.append(f"with {film['actors']}")
    return ", ".join(parts) + "."


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None, f"The package {name} is missing: install tiltyard[demo]."
    assert spec.origin is not None
    return Path(spec.origin).parent
