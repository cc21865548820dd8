"""What a publication does not hold back: operations that pass to its client, and those that it refuses.

A publication has every operation of a namespace. Which of these three ways one takes is said here, by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance_namespace as upstream
from lance_namespace.errors import UnsupportedOperationError

from tiltyard.publishing.changes import path_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.publishing.publication import Publication

PASSED = (
    "create_namespace", "describe_namespace", "describe_transaction", "drop_namespace", "list_all_tables",
    "list_namespaces", "namespace_exists",
)  # fmt: skip
SERVED = (
    "analyze_table_query_plan", "count_table_rows", "describe_table_index_stats", "explain_table_query_plan",
    "get_table_stats", "get_table_tag_version", "list_table_branches", "list_table_indices", "list_table_tags",
    "query_table",
)  # fmt: skip
"""What the server reads by itself: it does not see what a block has written."""


def complete(publication: type[Publication]) -> None:
    """Give a publication the operations that it has not got by itself."""
    for name in vars(upstream.LanceNamespace):
        if not name.startswith("_") and name not in vars(publication):
            way = _passed if name in PASSED else _served if name in SERVED else _refused
            method = way(name)
            method.__name__ = name
            setattr(publication, name, method)


def _passed(name: str) -> Callable[..., Any]:
    def method(self: Publication, *arguments: Any) -> Any:
        return getattr(self.client, name)(*arguments)

    return method


def _served(name: str) -> Callable[..., Any]:
    def method(self: Publication, request: Any) -> Any:
        path = path_of(request)
        if self.has_changed(path):
            raise UnsupportedOperationError(
                f"{name} does not see what this block wrote to {shown(path)}: read it with lance.dataset."
            )
        return getattr(self.client, name)(request)

    return method


def _refused(name: str) -> Callable[..., Any]:
    def method(self: Publication, *arguments: Any) -> Any:
        raise UnsupportedOperationError(
            f"{name} takes effect at once, so it cannot be part of a publication: call it outside of the block, or "
            "write through pylance."
        )

    return method
