"""What `bench.object_store` measures: Tiltyard and RestAdapter over HTTP, and pylance in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import lance
import numpy as np
import pyarrow as pa
from lance.namespace import DirectoryNamespace, RestNamespace
from lance_namespace import DescribeTableRequest, ListTablesRequest

from bench.load import Address
from bench.wire import ARROW, call, call_json, of_table, stream

DIMENSION = 16
PARTITIONS = 4


def rows(total: int, first: int = 0) -> pa.Table:
    """Rows with an id, a number and two equal vectors."""
    ids = np.arange(first, first + total)
    vectors = np.random.default_rng(first).standard_normal(total * DIMENSION, dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSION)
    return pa.table({"id": ids, "n": ids, "plain": column, "vector": column})


QUERY = [0.5] * DIMENSION


class Subject(Protocol):
    """What is measured: each method is one operation on a table."""

    def describe(self, table: str) -> object: ...
    def list_tables(self) -> object: ...
    def create(self, table: str, data: pa.Table) -> object: ...
    def insert(self, table: str, data: pa.Table) -> object: ...
    def nearest(self, table: str, column: str) -> object: ...
    def equal(self, table: str, number: int) -> object: ...
    def update(self, table: str, number: int) -> object: ...
    def delete(self, table: str, number: int) -> object: ...
    def merge(self, table: str, data: pa.Table) -> object: ...
    def create_tag(self, table: str, tag: str) -> object: ...
    def delete_tag(self, table: str, tag: str) -> object: ...
    def list_versions(self, table: str) -> object: ...
    def index(self, table: str) -> object: ...


class Served:
    """A server of the Lance REST Namespace."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def describe(self, table: str) -> object:
        return call_json(self.address, of_table(table, "describe"))

    def list_tables(self) -> object:
        return call(self.address, "GET", "/v1/namespace/$/table/list")

    def create(self, table: str, data: pa.Table) -> object:
        return call(self.address, "POST", of_table(table, "create"), stream(data), ARROW)

    def insert(self, table: str, data: pa.Table) -> object:
        return call(self.address, "POST", of_table(table, "insert"), stream(data), ARROW)

    def nearest(self, table: str, column: str) -> object:
        query = {"vector": {"single_vector": QUERY}, "vector_column": column, "k": 10, "nprobes": PARTITIONS}
        return self._query(table, query)

    def equal(self, table: str, number: int) -> object:
        return self._query(table, {"vector": {"single_vector": []}, "k": 1, "filter": f"id = {number}"})

    def _query(self, table: str, query: dict[str, Any]) -> object:
        body = json.dumps({**query, "columns": {"column_names": ["id"]}}).encode()
        return call(self.address, "POST", of_table(table, "query"), body)

    def update(self, table: str, number: int) -> object:
        body = {"predicate": f"id = {number}", "updates": [["n", "n + 1"]]}
        return call_json(self.address, of_table(table, "update"), body)

    def delete(self, table: str, number: int) -> object:
        return call_json(self.address, of_table(table, "delete"), {"predicate": f"id = {number}"})

    def merge(self, table: str, data: pa.Table) -> object:
        action = "merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
        return call(self.address, "POST", of_table(table, action), stream(data), ARROW)

    def create_tag(self, table: str, tag: str) -> object:
        return call_json(self.address, of_table(table, "tags/create"), {"tag": tag, "version": 1})

    def delete_tag(self, table: str, tag: str) -> object:
        return call_json(self.address, of_table(table, "tags/delete"), {"tag": tag})

    def list_versions(self, table: str) -> object:
        return call_json(self.address, of_table(table, "version/list"))

    def index(self, table: str) -> object:
        vector = {"column": "vector", "index_type": "IVF_PQ", "distance_type": "l2", "num_partitions": PARTITIONS}
        names = [
            call_json(self.address, of_table(table, f"create_{kind}"), {"name": name, **body})
            for kind, name, body in (
                ("index", "vectors", {**vector, "num_sub_vectors": 4}),
                ("scalar_index", "ids", {"column": "id", "index_type": "BTREE"}),
            )
        ]
        until = time.monotonic() + 120
        while len(call_json(self.address, of_table(table, "index/list"))["indexes"]) < len(names):
            if time.monotonic() > until:
                raise RuntimeError(f"The indexes of {table} were not built.")
            time.sleep(0.1)
        return names


class Embedded:
    """pylance in this process: each operation opens its table anew, with one session."""

    def __init__(self, root: str, options: dict[str, str]) -> None:
        self._root, self._options, self._session = root, options, lance.Session()
        properties = {f"storage.{name}": value for name, value in options.items()}
        self._namespace = DirectoryNamespace(root=root, session=self._session, **properties)

    def _open(self, table: str) -> lance.LanceDataset:
        return lance.dataset(f"{self._root}/{table}.lance", storage_options=self._options, session=self._session)

    def _write(self, table: str, data: pa.Table, mode: str) -> object:
        uri, options = f"{self._root}/{table}.lance", self._options
        return lance.write_dataset(data, uri, mode=mode, storage_options=options, session=self._session)

    def describe(self, table: str) -> object:
        return self._namespace.describe_table(DescribeTableRequest(id=[table]))

    def list_tables(self) -> object:
        return self._namespace.list_tables(ListTablesRequest(id=[]))

    def create(self, table: str, data: pa.Table) -> object:
        return self._write(table, data, "create")

    def insert(self, table: str, data: pa.Table) -> object:
        return self._write(table, data, "append")

    def nearest(self, table: str, column: str) -> object:
        nearest = {"column": column, "q": np.array(QUERY, np.float32), "k": 10, "nprobes": PARTITIONS}
        return self._open(table).to_table(columns=["id"], nearest=nearest)

    def equal(self, table: str, number: int) -> object:
        return self._open(table).to_table(columns=["id"], filter=f"id = {number}")

    def update(self, table: str, number: int) -> object:
        return self._open(table).update({"n": "n + 1"}, where=f"id = {number}")

    def delete(self, table: str, number: int) -> object:
        return self._open(table).delete(f"id = {number}")

    def merge(self, table: str, data: pa.Table) -> object:
        builder = self._open(table).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        return builder.execute(data)

    def create_tag(self, table: str, tag: str) -> object:
        return self._open(table).tags.create(tag, 1)

    def delete_tag(self, table: str, tag: str) -> object:
        return self._open(table).tags.delete(tag)

    def list_versions(self, table: str) -> object:
        return self._open(table).versions()

    def index(self, table: str) -> object:
        dataset = self._open(table)
        dataset.create_index("vector", "IVF_PQ", num_partitions=PARTITIONS, num_sub_vectors=4)
        return dataset.create_scalar_index("id", "BTREE")


class Managed(Served):
    """Tiltyard, with the operations that managed tables have besides."""

    def __init__(self, address: Address, options: dict[str, str]) -> None:
        super().__init__(address)
        self._options = options
        self._namespace = RestNamespace(uri=f"http://{address.host}:{address.port}")

    def append_as_client(self, table: str, data: pa.Table) -> object:
        """Append with pylance's own client, which writes all files but the final manifest."""
        options = self._options
        return lance.write_dataset(
            data, namespace_client=self._namespace, table_id=[table], mode="append", storage_options=options
        )

    def stage(self, table: str, data: pa.Table) -> dict[str, Any]:
        """Return the request that commits an append, which is staged."""
        client = _Staging(self._namespace)
        with suppress(OSError):
            lance.write_dataset(
                data, namespace_client=client, table_id=[table], mode="append", storage_options=self._options
            )
        assert client.staged is not None
        return client.staged

    def commit_batch(self, requests: Sequence[dict[str, Any]]) -> object:
        """Commit staged versions of several tables."""
        operations = [{"create_table_version": request} for request in requests]
        return call_json(self.address, "/v1/table/batch-commit", {"operations": operations})


class _Staging:
    """A client that passes on what a commit reads, and keeps the request to commit instead of sending it."""

    def __init__(self, namespace: RestNamespace) -> None:
        self._namespace = namespace
        self.staged: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namespace, name)

    def create_table_version(self, request: Any) -> object:
        """Keep the request, and refuse."""
        fields = request.model_dump() if hasattr(request, "model_dump") else dict(request)
        self.staged = {name: value for name, value in fields.items() if value is not None}
        raise ValueError("staged")
