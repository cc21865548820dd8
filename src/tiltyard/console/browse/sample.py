"""Load the bundled sample into a table, as whoever asks for it; and searches of it to begin with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, NamespaceNotFoundError

from tiltyard.console.browse.tree import show_namespace
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.table.grid import ROW_ID
from tiltyard.console.templates import link
from tiltyard.model.ids import Id, check_id
from tiltyard.model.text.typed_ids import parse_typed_id
from tiltyard.sample.films import example_searches
from tiltyard.sample.loading import is_sample, load_sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.console.page_calls import PageCalls

INDEX_SECONDS = 5.0
"""How long the page that loads the sample waits for its index of words."""
PAUSE_SECONDS = 0.05


def load(page: PageRequest) -> Page | Redirect:
    """Make a table of the sample in the page's namespace, and go to its search; say on its page why it cannot be."""
    try:
        table = _table(page)
        try:
            load_sample(page.calls, table)
        except NamespaceNotFoundError:
            page.calls.call("CreateNamespace", id=list(table[:-1]))
            load_sample(page.calls, table)
        _wait_for_index(page.calls, table)
    except LanceNamespaceError as error:
        return show_namespace(page, page.explain(error))
    return Redirect(link("search", table))


def _wait_for_index(calls: PageCalls, table: Id) -> None:
    """Wait until words can be searched, for as long as a reader does: nothing may be there that makes the index."""
    deadline = time.monotonic() + INDEX_SECONDS
    while time.monotonic() < deadline:
        if any(index.status == "done" for index in calls.call("ListTableIndices", id=list(table)).indexes):
            return
        time.sleep(PAUSE_SECONDS)


def _table(page: PageRequest) -> Id:
    """Return the id of the table that the form names, below the page's namespace. Raises InvalidInputError."""
    try:
        typed = parse_typed_id(page.text("table"))
    except ValueError as error:
        raise InvalidInputError(str(error)) from None
    if not typed:
        raise InvalidInputError("Enter the name of the table, as films or cinema.films.")
    return check_id(Id((*page.path, *typed)))


def find_examples(calls: PageCalls, path: Id, metadata: Mapping[str, str] | None) -> list[tuple[str, str, str]]:
    """Return searches of the sample: the kind, the text and the address of each; none of another table."""
    if not is_sample(metadata):
        return []

    def find_row(condition: str) -> int | None:
        request = {"filter": condition, "k": 1, "vector": {}, "columns": {"column_names": ["id"]}, "with_row_id": True}
        try:
            with calls.rows(id=list(path), **request) as answer:
                return next((row for batch in answer.batches for row in batch[ROW_ID].to_pylist()), None)
        except LanceNamespaceError:
            return None  # not with what its reader may see of it

    examples = example_searches(find_row)
    return [(example.kind, example.text, link("search", path, **example.parameters)) for example in examples]
