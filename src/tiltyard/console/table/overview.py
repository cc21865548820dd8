"""The first page of a table or a view: its schema, its figures, where it comes from, and how to open it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import LanceNamespaceError

from tiltyard.console.objects.protections import show_protections
from tiltyard.console.page import Page, PageRequest
from tiltyard.console.table.heads import TableHead, read_head
from tiltyard.console.table.lineage import read_origin
from tiltyard.console.table.snippets import make_snippets, make_view_snippets
from tiltyard.contracts.contract import PROPERTY as CONTRACT
from tiltyard.model.text.sql_text import quote_identifier
from tiltyard.model.views.plain_views import PREFIX as PLAIN_VIEW_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN = 50
"""Tags, branches, indexes, policies and jobs that the page lists."""
JOBS = 10
RESULTS = 5
"""Tests, and commits of which checks have found something, that the page lists."""
COUNTED_VERSIONS = 1000


def show(page: PageRequest) -> Page:
    """Show a table at a version. Raises what describing it raises."""
    head = read_head(page)
    values = head.values(page, "table") | {
        "snippets": (make_view_snippets if head.is_view else make_snippets)(
            page.origin, page.path, needs_key=page.principal.method != "open"
        ),
        "properties": {
            name: value
            for name, value in _properties(head.table.properties).items()
            if not name.startswith(PLAIN_VIEW_PREFIX) and name != CONTRACT
        },
        "metadata": _properties(head.table.metadata),
        "origin_of": read_origin(page.calls, head),
        "may_add_rows": head.table.location is not None and page.calls.allows("InsertIntoTable", id=list(page.path)),
        **show_protections(page, "table"),
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
    has_contract = CONTRACT in (head.table.properties or {})
    contract = attempt("DescribeTableContract", id=id_, limit=RESULTS) if has_contract else None
    classified = attempt("ListClassifications", object_kind="table", id=id_)
    jobs = attempt("ListAllJobs", table="$".join(page.path), limit=JOBS)
    return {
        "stats": stats,
        "versions": versions,
        "has_data": has_data,
        "tags": sorted(tags.tags.items()) if tags is not None else None,
        "branches": sorted(branches.branches.items()) if branches is not None else None,
        "indexes": indexes.indexes if indexes is not None else None,
        "policies": policies.policies if policies is not None else [],
        "classifications": classified.classifications if classified is not None else [],
        "jobs": jobs.jobs if jobs is not None else [],
        "contract": contract,
    }


def _properties(values: Mapping[str, str] | None) -> dict[str, str]:
    return dict(sorted((values or {}).items()))


def show_missing(page: PageRequest) -> Page:
    """Show how many rows of a computed column have no value yet: what a backfill has still to compute."""
    column = page.text("column")
    try:
        quoted = ".".join(quote_identifier(part) for part in column.split("."))
        missing = page.calls.call("CountTableRows", id=list(page.path), predicate=f"{quoted} IS NULL")
    except LanceNamespaceError as error:
        return Page("column_freshness.html", {"problem": str(error), "missing": 0}, fragment=True)
    return Page("column_freshness.html", {"problem": "", "missing": missing}, fragment=True)
