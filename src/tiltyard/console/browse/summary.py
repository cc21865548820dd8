"""One line about a table, which lists load as it comes into view."""

from __future__ import annotations

from lance_namespace.errors import LanceNamespaceError

from tiltyard.console.page import Page, PageRequest


def show(page: PageRequest) -> Page:
    """Show a table's rows, columns, version and size; why not, where it cannot be opened."""
    try:
        table = page.calls.call("DescribeTable", id=list(page.path), load_detailed_metadata=True, check_declared=True)
        stats = None if table.is_only_declared else page.calls.attempt("GetTableStats", id=list(page.path))
    except LanceNamespaceError as error:
        return Page("table_summary.html", {"problem": str(error), "table": None, "stats": None}, fragment=True)
    return Page("table_summary.html", {"problem": "", "table": table, "stats": stats}, fragment=True)
