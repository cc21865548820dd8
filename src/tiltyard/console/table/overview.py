"""The first page of a table: its schema, its figures, where it comes from, and how to open it from lancedb, pylance,
PySpark and curl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lance_namespace.errors import LanceNamespaceError

from tiltyard.console.page import Page, PageRequest
from tiltyard.console.table.heads import TableHead, read_head
from tiltyard.console.table.lineage import read_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.model.ids import Id

SHOWN = 50
"""Tags, branches, indexes, policies and jobs that the page lists."""
JOBS = 10
COUNTED_VERSIONS = 1000


def show(page: PageRequest) -> Page:
    """Show a table at a version. Raises what describing it raises."""
    head = read_head(page)
    values = head.values(page, "table") | {
        "snippets": make_snippets(page.origin, page.path, needs_key=page.principal.method != "open"),
        "properties": _properties(head.table.properties),
        "metadata": _properties(head.table.metadata),
        "origin_of": read_origin(page.calls, head),
        **_parts(page, head),
    }
    return Page("table.html", values)


def _parts(page: PageRequest, head: TableHead) -> dict[str, Any]:
    """Return what further operations say of the table; what its reader may not ask for is None."""
    attempt, id_ = page.calls.attempt, list(page.path)
    has_data = not head.table.is_only_declared and head.table.location is not None
    stats = attempt("GetTableStats", id=id_, branch=head.branch) if has_data else None
    versions = attempt("ListTableVersions", id=id_, branch=head.branch, limit=COUNTED_VERSIONS) if has_data else None
    tags = attempt("ListTableTags", id=id_, limit=SHOWN) if has_data else None
    branches = attempt("ListTableBranches", id=id_, limit=SHOWN) if has_data else None
    indexes = attempt("ListTableIndices", id=id_, branch=head.branch, limit=SHOWN) if has_data else None
    policies = attempt("ListTablePolicies", id=id_)
    jobs = attempt("ListAllJobs", table="$".join(page.path), limit=JOBS)
    return {
        "stats": stats,
        "versions": versions,
        "has_data": has_data,
        "tags": sorted(tags.tags.items()) if tags is not None else None,
        "branches": sorted(branches.branches.items()) if branches is not None else None,
        "indexes": indexes.indexes if indexes is not None else None,
        "policies": policies.policies if policies is not None else [],
        "jobs": jobs.jobs if jobs is not None else [],
    }


def _properties(values: Mapping[str, str] | None) -> dict[str, str]:
    return dict(sorted((values or {}).items()))


def show_missing(page: PageRequest) -> Page:
    """Show how many rows of a computed column have no value yet: what a backfill has still to compute."""
    column = page.text("column")
    try:
        quoted = ".".join(f"`{part.replace('`', '``')}`" for part in column.split("."))
        missing = page.calls.call("CountTableRows", id=list(page.path), predicate=f"{quoted} IS NULL")
    except LanceNamespaceError as error:
        return Page("column_freshness.html", {"problem": str(error), "missing": 0}, fragment=True)
    return Page("column_freshness.html", {"problem": "", "missing": missing}, fragment=True)


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
