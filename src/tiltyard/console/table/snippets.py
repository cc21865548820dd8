"""Code that opens a table from lancedb, pylance, PySpark and curl, a view from what reads views, and that makes a first
table.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from tiltyard.model.text.sql_text import sql_table
from tiltyard.model.text.typed_ids import format_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.model.ids import Id

KEY = "YOUR_KEY"


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code for one client."""

    name: str
    code: str


def make_snippets(origin: str, path: Id, *, needs_key: bool) -> Sequence[Snippet]:
    """Return code that opens a table; with `needs_key` it has a place for an API key."""
    names = list(path)
    properties = {"uri": origin} | ({"header.x-api-key": KEY} if needs_key else {})
    spark_key = f'\n    .option("property.header.x-api-key", "{KEY}")' if needs_key else ""
    table = "$".join(names)
    return (
        _lancedb(origin, path, needs_key=needs_key),
        Snippet(
            "pylance",
            f"import lance\nimport lance_namespace\n\n"
            f'namespace = lance_namespace.connect("rest", {properties!r})\n'
            f"dataset = lance.dataset(namespace_client=namespace, table_id={names!r})\ndataset.head(5)",
        ),
        Snippet(
            "PySpark",
            f'rows = (\n    spark.read.format("tiltyard")\n    .option("uri", "{origin}"){spark_key}\n'
            f'    .option("table", "{table}")\n    .load()\n)',
        ),
        _curl(origin, path, needs_key=needs_key),
    )


def make_view_snippets(origin: str, path: Id, *, needs_key: bool) -> Sequence[Snippet]:
    """Return code that reads a view: by clients that ask the server for rows, since a view has no files to read."""
    key = f', api_key="{KEY}"' if needs_key else ""
    query = f"SELECT * FROM {sql_table(path)} LIMIT 5"  # noqa: S608  # shown to copy; its names are quoted
    return (
        _lancedb(origin, path, needs_key=needs_key),
        Snippet(
            "SQL in Python",
            f'import tiltyard\n\nlake = tiltyard.connect("{origin}"{key})\nrows = lake.sql({query!r})\nprint(rows)',
        ),
        _curl(origin, path, needs_key=needs_key),
    )


def make_first_snippets(origin: str, path: Id, *, needs_key: bool) -> Sequence[Snippet]:
    """Return code that makes a first table in a namespace."""
    table = shlex.quote(format_id((*path, "films")))
    key, login = (KEY, "") if needs_key else ("any", " --no-key")
    namespace = f", namespace_path={list(path)!r}" if path else ""
    return (
        Snippet(
            "a shell",
            f"tiltyard login {origin}{login}\ntiltyard import films.csv {table}\ntiltyard head {table}",
        ),
        Snippet(
            "Python",
            "import lancedb  # pip install lancedb\n\n"
            f'db = lancedb.connect("db://default", api_key="{key}", host_override="{origin}")\n'
            f'rows = [{{"id": 1, "vector": [0.1, 0.2], "text": "hello"}}]\ndb.create_table("first", rows{namespace})',
        ),
    )


def _lancedb(origin: str, path: Id, *, needs_key: bool) -> Snippet:
    key = KEY if needs_key else "any"
    arguments = f"{path.name!r}" + (f", namespace_path={list(path[:-1])!r}" if len(path) > 1 else "")
    return Snippet(
        "lancedb",
        f'import lancedb\n\ndb = lancedb.connect("db://default", api_key="{key}", host_override="{origin}")\n'
        f"table = db.open_table({arguments})\ntable.head(5)",
    )


def _curl(origin: str, path: Id, *, needs_key: bool) -> Snippet:
    header = f" \\\n  -H 'x-api-key: {KEY}'" if needs_key else ""
    return Snippet(
        "curl",
        f"curl -s '{origin}/v1/table/{quote('$'.join(path), safe='')}/query'{header} \\\n"
        "  -H 'content-type: application/json' -d '{\"k\": 5, \"vector\": {}}' > rows.arrow",
    )
