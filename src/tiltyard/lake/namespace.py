"""A namespace of a lake: its tables, by their ids within it, and its namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import lance_namespace as upstream
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError

from tiltyard.lake.display import render_table
from tiltyard.lake.functions import ListedFunction, list_lake_functions
from tiltyard.lake.operations.guesses import LAKE_GUESSES, Guess, Guessing
from tiltyard.lake.protections import Protections
from tiltyard.lake.session import LakeSession
from tiltyard.lake.tables.sources import Source
from tiltyard.lake.tables.table import Table
from tiltyard.lake.tables.writer import Mode
from tiltyard.model.text.typed_ids import format_id, parse_typed_id

if TYPE_CHECKING:
    import pyarrow as pa


PAGE_SIZE = 1000


class LakeNamespace(Guessing):
    """A namespace of a lake; ids are within it: `lake.namespace("shop").table("orders")`."""

    guesses: ClassVar[Mapping[str, Guess]] = LAKE_GUESSES

    table_class: type[Table] = Table

    def __init__(self, lake: LakeSession, path: tuple[str, ...], table_class: type[Table]) -> None:
        self._owner = lake
        self.path = path
        self.table_class = table_class

    @property
    def _lake(self) -> LakeSession:
        return self._owner

    @property
    def name(self) -> str:
        """Return the namespace's id (`shop`, `shop.archive`); "." for the root."""
        return format_id(self.path)

    def table(self, name: str) -> Table:
        """Return a table by its id (`shop.orders`, `"a.b".c`), which need not exist. Raises InvalidInputError."""
        return self.table_class(self._lake, self._resolve(name, "table"))

    def __getitem__(self, name: str) -> Table:
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.table(name).exists()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    def open_table(self, name: str) -> Table:
        """Return a table that exists, also one that is only declared. Raises TableNotFoundError, InvalidInputError."""
        table = self.table(name)
        self._client.table_exists(upstream.TableExistsRequest(id=list(table.path)))
        return table

    def create_table(
        self,
        name: str,
        data: Source | None = None,
        *,
        schema: pa.Schema | None = None,
        mode: Mode = "create",
        exist_ok: bool = False,
    ) -> Table:
        """Create a table of rows, or of a schema without rows; return it. Rows are cast to the types of a schema.

        `mode="overwrite"` replaces the rows and columns of one that exists, `exist_ok` returns it as it is.
        `table(name).ingest` takes checks, rejects and transformations. Raises InvalidInputError,
        TableAlreadyExistsError, NamespaceNotFoundError.
        """
        if data is None and schema is None:
            raise InvalidInputError("data and schema are both left out: give rows, or the columns of a table.")
        if mode == "append":
            raise InvalidInputError("mode is create or overwrite: table(name).write(rows) appends.")
        table = self.table(name)
        cast = None if data is None or schema is None else {field.name: field.type for field in schema}
        rows: Any = schema.empty_table() if data is None and schema is not None else data
        try:
            table.ingest(rows, mode=mode, cast=cast)
        except TableAlreadyExistsError:
            if not exist_ok:
                raise
        return table

    def drop_table(self, name: str) -> None:
        """Drop a table: `table(name).drop()`. Raises TableNotFoundError, InvalidInputError."""
        self.table(name).drop()

    def namespace(self, name: str) -> LakeNamespace:
        """Return a namespace by its id; it need not exist. Raises InvalidInputError."""
        return LakeNamespace(self._lake, self._resolve(name, "namespace"), self.table_class)

    def tables(self) -> list[str]:
        """Return the ids of the tables and views directly in it, as `lake.table` takes them.

        Raises NamespaceNotFoundError.
        """
        return [format_id((*self.path, name)) for name in self._list("ListTables", "tables")]

    def namespaces(self) -> list[str]:
        """Return the ids of the namespaces directly in it, as `lake.namespace` takes them.

        Raises NamespaceNotFoundError.
        """
        return [format_id((*self.path, name)) for name in self._list("ListNamespaces", "namespaces")]

    def functions(self) -> list[ListedFunction]:
        """Return the functions of columns: the ready-made ones, and each version of those that are registered in it.

        Raises NamespaceNotFoundError.
        """
        return list_lake_functions(self._lake.calls, self.path)

    def create(self, *, exist_ok: bool = False) -> LakeNamespace:
        """Create the namespace; return it. Raises NamespaceAlreadyExistsError unless `exist_ok`."""
        mode = "exist_ok" if exist_ok else "create"
        self._client.create_namespace(upstream.CreateNamespaceRequest(id=list(self.path), mode=mode))
        return self

    @property
    def protections(self) -> Protections:
        """Return what protects the namespace with all below it: `protections.set("deletion")`, `.list()`, `.lift`."""
        return Protections(self._lake.calls, "namespace", self.path)

    def drop(self) -> None:
        """Drop the namespace, which has to be empty. Raises NamespaceNotFoundError, NamespaceNotEmptyError."""
        self._client.drop_namespace(upstream.DropNamespaceRequest(id=list(self.path)))

    def __repr__(self) -> str:
        return f"<namespace {self.name} of {self._lake.location}>"

    def _repr_html_(self) -> str:
        rows = [(name, "table") for name in self.tables()] + [(name, "namespace") for name in self.namespaces()]
        return render_table(("name", "is a"), rows)

    @property
    def _client(self) -> upstream.LanceNamespace:
        return self._lake.catalog.client()

    def _resolve(self, name: str, kind: str) -> tuple[str, ...]:
        try:
            names = parse_typed_id(name)
        except (ValueError, TypeError) as error:
            raise InvalidInputError(f"name: {error}") from error
        if not names:
            raise InvalidInputError(f"name is empty: name a {kind}.")
        return (*self.path, *names)

    def _list(self, operation: str, field: str) -> Iterator[str]:
        return self._lake.calls.entries(operation, field, id=list(self.path), limit=PAGE_SIZE)
