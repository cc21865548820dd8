"""A namespace in front of another one: operations that a publication passes to its client, and those it refuses."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import lance_namespace as upstream
from lance_namespace.errors import UnsupportedOperationError

from tiltyard.publishing.staged import display_id, path_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.publishing.staged import Path

PASSED = (
    "create_namespace", "describe_namespace", "describe_transaction", "drop_namespace", "list_all_tables",
    "list_namespaces", "namespace_exists",
)  # fmt: skip
SERVER_READS = (
    "analyze_table_query_plan", "count_table_rows", "describe_table_index_stats", "explain_table_query_plan",
    "get_table_stats", "list_table_indices", "query_table",
)  # fmt: skip
"""What the server reads of a table's versions: it does not see what a block has written."""
SERVER_NAMES = "get_table_tag_version", "list_table_branches", "list_table_tags"
"""What it reads of a table's names for versions, which no commit changes."""


class PassthroughNamespace(upstream.LanceNamespace):
    """Pass or refuse every operation of a namespace; a publication overrides those that it holds back."""

    client: upstream.LanceNamespace

    @abstractmethod
    def has_changed(self, path: Path) -> bool:
        """Whether the block holds back changes of a table."""

    @abstractmethod
    def note_read(self, request: Any) -> None:
        """Note that the server is about to read a table for the block."""


def _passed(name: str) -> Callable[..., Any]:
    def method(self: PassthroughNamespace, *arguments: Any) -> Any:
        return getattr(self.client, name)(*arguments)

    return method


def _passed_if_unchanged(name: str) -> Callable[..., Any]:
    def method(self: PassthroughNamespace, request: Any) -> Any:
        path = path_of(request)
        if self.has_changed(path):
            raise UnsupportedOperationError(
                f"{name} does not see what this block wrote to {display_id(path)}: read it with lance.dataset."
            )
        if name in SERVER_READS:
            self.note_read(request)
        return getattr(self.client, name)(request)

    return method


def _refused(name: str) -> Callable[..., Any]:
    def method(self: PassthroughNamespace, *arguments: Any) -> Any:
        raise UnsupportedOperationError(
            f"{name} takes effect at once, so it cannot be part of a publication: call it outside of the block, or "
            "write through pylance."
        )

    return method


def _add_operations() -> None:
    """Give the class a method for each operation of upstream's interface, also for those of later versions."""
    for name in vars(upstream.LanceNamespace):
        if not name.startswith("_") and name not in upstream.LanceNamespace.__abstractmethods__:
            is_read = name in SERVER_READS or name in SERVER_NAMES
            kind = _passed if name in PASSED else _passed_if_unchanged if is_read else _refused
            method = kind(name)
            method.__name__ = name
            setattr(PassthroughNamespace, name, method)


_add_operations()
