"""Films to search: real rows from the package `bokeh-sampledata`, which carries them as a SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

QUERY = """
    SELECT omdb.imdbID AS id, Title AS title, Year AS year, coalesce(Genre, '') AS genre,
           coalesce(Director, '') AS director, coalesce("Cast", '') AS actors,
           coalesce(Country, '') AS country, coalesce(Language, '') AS language,
           coalesce(Runtime, 0) AS minutes, coalesce(Reviews, 0) AS reviews, coalesce(Meter, 0) AS score
    FROM omdb JOIN tomatoes USING (ID)
    ORDER BY omdb.ID
"""


def load_films() -> pa.Table:
    """17,472 films: what is known of each, and one sentence that says it."""
    database = _package_folder("bokeh_sampledata") / "_data" / "movies.db"
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(QUERY)]
    return pa.Table.from_pylist(rows).append_column("description", pa.array([describe(row) for row in rows]))


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
