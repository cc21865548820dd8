"""Make every call of lance-ray, for `tests.conformance.lance_ray`, in a process of its own.

    python ray_calls.py '{"uri": "http://…", "header.x-api-key": "…"}'

Each line of standard output that begins with MARK says what became of one call:
`what`, `call`, `rows` or `error`, and what was `expected`, or with which `refusal` it must end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lance_namespace as namespaces
import lance_ray as lr
import pyarrow as pa
import ray
from ray.data import DataContext

MARK = "\x1e"


def people(start: int, stop: int) -> Any:
    """Rows as a data set of Ray."""
    ids = range(start, stop)
    vectors = pa.array([[float(number), 1.0] for number in ids], pa.list_(pa.float32(), 2))
    return ray.data.from_arrow(pa.table({"id": list(ids), "name": [f"n{number}" for number in ids], "vector": vectors}))


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([2 * number for number in batch["id"].to_pylist()])], ["twice"])


def thrice(batch: pa.Table) -> pa.Table:
    values = pa.array([3 * number for number in batch["id"].to_pylist()])
    return pa.table({"_rowaddr": batch["_rowaddr"], "_fragid": batch["_fragid"], "thrice": values})


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its purpose, its code (`…` for the table), and the expected rows or refusal."""

    what: str
    written: str
    function: Callable[[], Any]
    rows: list[list[Any]] | None = None
    refusal: str = ""

    def answer(self) -> dict[str, Any]:
        try:
            result = self.function()
        except Exception as error:  # noqa: BLE001  # whatever went wrong is the answer
            return {"error": f"{type(error).__name__}: {error}"}
        return {"rows": result if isinstance(result, list) else []}


class Table:
    """Calls on one table of the server that `where` leads to."""

    def __init__(self, location: dict[str, Any], table_id: list[str]) -> None:
        self.where, self.table_id = location, table_id
        self.at = {"table_id": table_id, **location}

    def write(self, start: int, stop: int, mode: str) -> None:
        lr.write_lance(people(start, stop), mode=mode, **self.at)

    def rows(self, **options: Any) -> list[list[Any]]:
        return [list(row.values()) for row in lr.read_lance(**self.at, **options).take_all()]

    def count(self, **options: Any) -> list[list[int]]:
        return [[lr.read_lance(**self.at, **options).count()]]

    def add_column(self) -> None:
        lr.add_columns(transform=twice, read_columns=["id"], **self.at)

    def merge_column(self) -> None:
        source = lr.read_lance(columns=["id"], with_metadata=True, **self.at)
        lr.merge_columns_from(ds=source.map_batches(thrice, batch_format="pyarrow"), **self.at)

    def index(self, column: str, kind: str) -> None:
        lr.create_scalar_index(column=column, index_type=kind, num_workers=2, **self.at)

    def vector_index(self) -> None:
        lr.create_index(column="vector", index_type="IVF_FLAT", num_workers=2, num_partitions=2, **self.at)

    def search(self) -> list[list[Any]]:
        nearest = {"column": "vector", "q": [7.0, 1.0], "k": 1}
        return [[row["id"]] for row in lr.vector_search(nearest=nearest, columns=["id"], **self.at).to_pylist()]

    def optimize(self) -> None:
        lr.optimize_indices(**self.at)

    def compact(self) -> None:
        lr.compact_files(num_workers=2, **self.at)

    def compact_all(self) -> list[list[Any]]:
        results = lr.compact_database(database=self.table_id[:-1], num_workers=2, **self.where)
        return [[result["table_id"][-1]] for result in results]


def calls(location: dict[str, Any]) -> list[Call]:
    """Every call, in an order in which they build on each other."""
    main, copy = Table(location, ["team", "people"]), Table(location, ["team", "copy"])
    return [
        Call("create", 'write_lance(ds, …, mode="create")', lambda: main.write(0, 300, "create")),
        Call(
            "create again",
            'write_lance(ds, …, mode="create")',
            lambda: main.write(0, 1, "create"),
            None,
            "already exists",
        ),
        Call("append", 'write_lance(ds, …, mode="append")', lambda: main.write(300, 600, "append")),
        Call("count", "read_lance(…).count()", main.count, [[600]]),
        Call(
            "columns and a filter",
            'read_lance(…, columns=["name"], filter="id = 7")',
            lambda: main.rows(columns=["name"], filter="id = 7"),
            [["n7"]],
        ),
        Call("overwrite nothing", 'write_lance(ds, …, mode="overwrite")', lambda: copy.write(0, 10, "overwrite")),
        Call("overwrite", 'write_lance(ds, …, mode="overwrite")', lambda: copy.write(0, 20, "overwrite")),
        Call("see what overwrote", "read_lance(…).count()", copy.count, [[20]]),
        Call(
            "an earlier version",
            'read_lance(…, dataset_options={"version": 1})',
            lambda: copy.count(dataset_options={"version": 1}),
            [[10]],
        ),
        Call("add a column", "add_columns(…, transform)", main.add_column),
        Call(
            "see the column",
            'read_lance(…, columns=["twice"])',
            lambda: main.rows(columns=["twice"], filter="id = 21"),
            [[42]],
        ),
        Call("merge a column in", "merge_columns_from(…, ds)", main.merge_column),
        Call(
            "see the column",
            'read_lance(…, columns=["thrice"])',
            lambda: main.rows(columns=["thrice"], filter="id = 21"),
            [[63]],
        ),
        Call("a scalar index", 'create_scalar_index(…, index_type="BTREE")', lambda: main.index("id", "BTREE")),
        Call("a text index", 'create_scalar_index(…, index_type="INVERTED")', lambda: main.index("name", "INVERTED")),
        Call("a vector index", 'create_index(…, index_type="IVF_FLAT")', main.vector_index),
        Call("extend the indexes", "optimize_indices(…)", main.optimize),
        Call("vector search", "vector_search(…, nearest)", main.search, [[7]]),
        Call("compact", "compact_files(…)", main.compact),
        Call("compact a namespace", "compact_database(…)", main.compact_all, [["copy"], ["people"]]),
        Call("count at the end", "read_lance(…).count()", main.count, [[600]]),
    ]


def main() -> None:
    properties = json.loads(sys.argv[1])
    namespaces.connect("rest", properties).create_namespace(namespaces.CreateNamespaceRequest(id=["team"]))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    DataContext.get_current().default_hash_shuffle_parallelism = 2
    lr.init_global_pool(2)
    for call in calls({"namespace_impl": "rest", "namespace_properties": properties}):
        line = {
            "what": call.what,
            "call": call.written,
            "expected": call.rows,
            "refusal": call.refusal,
            **call.answer(),
        }
        print(f"{MARK}{json.dumps(line)}", flush=True)  # noqa: T201  # the parent reads it
    lr.clear_global_pool(close=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
