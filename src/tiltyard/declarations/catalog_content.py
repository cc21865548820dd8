"""What a caller sees of a catalog: its namespaces, functions and tables, read once for all kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.text.typed_ids import format_id

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

WHOLE = ""
"""The name under which is noted that all of a section is left out."""
MAX_OBJECTS = 200_000
"""Namespaces and tables that are read of one catalog: each is a call or more."""
_GONE = (NamespaceNotFoundError, TableNotFoundError)
_NOT_VISIBLE = (PermissionDeniedError, UnsupportedOperationError, InvalidTableStateError)
_OF_MOUNT = "It is a mount of another catalog, which has what is in it."


class CatalogContent:
    """A catalog, or what is `within` one of its namespaces, as its caller sees it.

    `left_out` says why an object is not told, by its section and name.
    """

    def __init__(self, calls: Caller, within: Sequence[str] = ()) -> None:
        self.calls = calls
        self.within = tuple(within)
        self.left_out: dict[tuple[str, str], str] = {}

    def leave_out(self, section: str, name: str, reason: str) -> None:
        """Note that an object, or with the name `WHOLE` all of a section, is not told, and why."""
        self.left_out[section, name] = reason

    @contextmanager
    def leaving_out(self, section: str, name: str) -> Iterator[None]:
        """Note what the block may not see; what was dropped meanwhile is none of the catalog's any more."""
        try:
            yield
        except _GONE:
            return
        except _NOT_VISIBLE as error:
            self.leave_out(section, name, str(error))

    def entries(self, section: str, operation: str, field: str, **fields: Any) -> list[Any]:
        """Return what an operation lists that is about all of a section; nothing where the caller may not list it."""
        found: list[Any] = []
        with self.leaving_out(section, WHOLE):
            found += self.calls.entries(operation, field, **fields)
        return found

    @cached_property
    def mounts(self) -> list[dict[str, Any]]:
        """The mounts, for an administrator."""
        return self.entries("mounts", "ListMounts", "mounts")

    @cached_property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """The properties of the namespaces by their ids, but for mounts and what is in them."""
        described = {}
        for path in self._paths:
            name = format_id(path)
            if not path or ("namespaces", name) in self.left_out:
                continue
            with self.leaving_out("namespaces", name):
                described[name] = self.calls.call("DescribeNamespace", id=list(path)).get("properties") or {}
        return described

    @cached_property
    def functions(self) -> dict[str, list[dict[str, Any]]]:
        """The versions of each function, by its id."""
        found: dict[str, list[dict[str, Any]]] = {}
        for path, versions in self._paths.items():
            for entry in versions:
                found.setdefault(format_id((*path, entry["name"])), []).append(entry["definition"])
        return found

    @cached_property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The descriptions of tables and views by their ids, as DescribeTable has them."""
        described: dict[str, dict[str, Any]] = {}
        for path in self._paths:
            with self.leaving_out("tables", format_id(path)):
                for name in self.calls.entries("ListTables", "tables", id=list(path)):
                    table = format_id((*path, name))
                    with self.leaving_out("tables", table):
                        fields: dict[str, Any] = {
                            "id": [*path, name],
                            "load_detailed_metadata": True,
                            "vend_credentials": False,
                        }
                        described[table] = self.calls.call("DescribeTable", **fields)
            self._check_number(len(described))
        return described

    @cached_property
    def _paths(self) -> Mapping[tuple[str, ...], list[Any]]:
        """The namespaces of this catalog, the outermost first, each with the versions of its functions."""
        found: dict[tuple[str, ...], list[Any]] = {}
        waiting = [self.within]
        while waiting:
            path = waiting.pop()
            try:
                found[path] = list(self.calls.entries("ListFunctions", "functions", id=list(path)))
            except UnsupportedOperationError:  # what others mount has no functions of ours
                self.leave_out("namespaces", format_id(path), _OF_MOUNT)
                continue
            except _GONE:
                continue
            except PermissionDeniedError:  # it is seen for the sake of what is in it
                found[path] = []
            with self.leaving_out("namespaces", format_id(path)):
                names = self.calls.entries("ListNamespaces", "namespaces", id=list(path))
                waiting += [(*path, name) for name in names]
            self._check_number(len(found))
        return dict(sorted(found.items()))

    def _check_number(self, number: int) -> None:
        if number > MAX_OBJECTS:
            raise InvalidInputError(f"The catalog has more than {MAX_OBJECTS} namespaces or tables: that is too many.")
