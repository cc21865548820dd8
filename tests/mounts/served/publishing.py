"""A server that publishes to another catalog, for tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.mounts.backends import new_name
from tests.services.wire import Wire, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, MountedTable

ROWS = pa.table({"x": [1, 2, 3]})
STEP_SECONDS = 90


@dataclass
class Publisher:
    """A server that publishes, and the catalog that it publishes to."""

    wire: Wire
    kind: str
    settings: Mapping[str, object]
    catalog: MountedCatalog
    name: str = ""

    def publish(self, **request: Any) -> dict[str, Any]:
        """Create a publication; return its entry."""
        self.name = new_name("publication")
        fields = {"publication": self.name, "kind": self.kind, "settings": self.settings, **request}
        entry: dict[str, Any] = self.call("create", **fields)["publication"]
        return entry

    def call(self, action: str, **fields: Any) -> dict[str, Any]:
        """Run an operation on publications."""
        response = self.wire.http.post(f"/tiltyard/v1/publication/{action}", json=fields)
        result: dict[str, Any] = self.wire.good(response)
        return result

    def entry(self) -> dict[str, Any]:
        """Return the publication as it is listed."""
        entries = self.call("list")["publications"]
        return next(entry for entry in entries if entry["publication"] == self.name)

    def sync(self) -> dict[str, Any]:
        """Sync; return the publication."""
        entry: dict[str, Any] = self.call("sync", publication=self.name)["publication"]
        return entry

    def wait(self, is_reached: Callable[[dict[str, Any]], bool] = lambda entry: True) -> dict[str, Any]:
        """Wait for the worker to bring the publication in step, and to a state."""
        until = time.monotonic() + STEP_SECONDS
        while not ((entry := self.entry())["in_step"] and is_reached(entry)):
            assert time.monotonic() < until, entry
            time.sleep(0.1)
        return entry

    def create(self, *table: str, rows: pa.Table = ROWS, properties: Mapping[str, str] | None = None) -> str:
        """Create a table; return its location."""
        headers = {"x-lance-table-properties": json.dumps(dict(properties))} if properties else {}
        response = self.wire.http.post(
            f"/v1/table/{'$'.join(table)}/create",
            content=stream(rows),
            headers={"content-type": "application/vnd.apache.arrow.stream", **headers},
        )
        self.wire.good(response)
        return self.location(*table)

    def location(self, *table: str) -> str:
        """Return where a table of ours is."""
        location: str = self.wire.good(self.wire.table(table, "describe"))["location"]
        return location

    def namespace(self, *path: str) -> None:
        """Create a namespace of ours."""
        self.wire.good(self.wire.namespace(path, "create"))

    def rename(self, table: tuple[str, ...], name: str) -> None:
        """Rename a table of ours."""
        self.wire.good(self.wire.table(table, "rename", {"new_table_name": name}))

    def drop(self, *table: str) -> None:
        """Drop a table of ours."""
        self.wire.good(self.wire.table(table, "drop"))

    def names(self, *namespace: str) -> list[str]:
        """Return the names of tables in a namespace of the other catalog."""
        return sorted(self.catalog.list_tables(Id(namespace)).names)

    def there(self, *table: str) -> MountedTable:
        """Return an entry in the other catalog."""
        return self.catalog.get_table(Id(table))
