"""How to open a table from lancedb, pylance, PySpark and curl, at this server's address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

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
    key = KEY if needs_key else "any"
    properties = {"uri": origin} | ({"header.x-api-key": KEY} if needs_key else {})
    spark_key = f'\n    .option("property.header.x-api-key", "{KEY}")' if needs_key else ""
    header = f" \\\n  -H 'x-api-key: {KEY}'" if needs_key else ""
    table = "$".join(names)
    arguments = f"{path.name!r}" + (f", namespace_path={names[:-1]!r}" if len(names) > 1 else "")
    return (
        Snippet(
            "lancedb",
            f'import lancedb\n\ndb = lancedb.connect("db://default", api_key="{key}", host_override="{origin}")\n'
            f"table = db.open_table({arguments})\ntable.head(5)",
        ),
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
        Snippet(
            "curl",
            f"curl -s '{origin}/v1/table/{quote(table, safe='')}/query'{header} \\\n"
            "  -H 'content-type: application/json' -d '{\"k\": 5, \"vector\": {}}' > rows.arrow",
        ),
    )
