"""Queries over a catalog in process, by principals with few privileges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

from tests.tables.served import Server
from tiltyard.access.policies import Mask, MaskKind, Policy
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.model.principals import EVERYBODY, Principal, parse_privileges
from tiltyard.sql.engine import run
from tiltyard.store.access.grants import NAMESPACE, TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FILMS = pa.table(
    {
        "id": range(1, 7),
        "title": ["Alien", "Brazil", "Casablanca", "Dune", "Eraserhead", "Fargo"],
        "owner": ["ann", "bob", "ann", "bob", "ann", "bob"],
        "budget": [11.0, 15.0, 0.9, 40.0, 0.01, 7.0],
        "vector": pa.array([[float(i), 0.0] for i in range(6)], pa.list_(pa.float32(), 2)),
    }
)
RATINGS = pa.table({"film": [1, 1, 2, 4], "stars": [5, 4, 3, 5]})


class Queries:
    """A catalog with the tables `films` and `sales$ratings`."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.server = Server(root, **settings)
        self.services = self.server.services
        films = self.server.create("films", FILMS)
        films.create_scalar_index("title", "INVERTED")
        self.add_table(Id(("sales", "ratings")), RATINGS)

    def add_table(self, path: Id, data: pa.Table) -> None:
        store = self.services.store
        if path.parent:
            store.create_namespace(path.parent, {})
        location = self.services.storage.new_location(path)
        lance.write_dataset(data, location)
        store.insert_table(path, location, {})

    def context(self, name: str | None = None, *groups: str) -> Context:
        principal = EVERYBODY if name is None else Principal(name, groups, "test")
        self.services.rights_cache.refresh_next()
        return Context(self.services, "test", principal=principal)

    def run(self, query: str, reader: str | None = None, *, namespace: Sequence[str] = (), **options: Any) -> pa.Table:
        """Return what a query returns to a reader; an administrator by default."""
        answer = run(self.context(reader), query, Id(namespace), **options)
        return pa.Table.from_batches(list(answer.batches), answer.schema)

    def rows(self, query: str, reader: str | None = None, **options: Any) -> list[dict[str, Any]]:
        return self.run(query, reader, **options).to_pylist()

    def grant(self, name: str, privileges: str, *, table: Sequence[str] = (), namespace: Sequence[str] = ()) -> None:
        store = self.services.store
        kind = TABLE if table else NAMESPACE
        number = store.describe_table(tuple(table)).id if table else store.describe_namespace(tuple(namespace)).id
        store.grant(f"principal:{name}", kind, number, parse_privileges(privileges.split(",")), "test")

    def restrict(self, table: Sequence[str], row_filter: str | None, **masks: str) -> None:
        """Set a policy: masks are `hide`, `null` or an expression, by column."""
        kinds = {"hide": MaskKind.HIDE, "null": MaskKind.NULL}
        policy = Policy(
            row_filter,
            tuple(
                Mask(column, kinds.get(text, MaskKind.EXPRESSION), None if text in kinds else text)
                for column, text in masks.items()
            ),
        )
        store = self.services.store
        store.set_policy(store.describe_table(tuple(table)).id, "test", policy.to_json(), "test")


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[Queries]:
    made = Queries(tmp_path / "root")
    yield made
    made.services.close()
