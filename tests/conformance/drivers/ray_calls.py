"""Make every call of lance-ray, as `calls` has it."""

from __future__ import annotations

from typing import Any

import lance_ray as lr
import pyarrow as pa
import ray
from ray.data import DataContext

from calls import Call, Seen, Server, added_by_lancedb, make, server_of_command, table_of

PEOPLE, COPY, NESTED = ["team", "people"], ["team", "copy"], ["team", "inner", "people"]
RETRY = (
    "it tries a refused write again with a stream that it has read, writes no rows, and says nothing (its issue 5290)"
)


def people(start: int, stop: int) -> Any:
    """Rows as a data set of Ray."""
    return ray.data.from_arrow(table_of(start, stop))


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([2 * number for number in batch["id"].to_pylist()])], ["twice"])


def thrice(batch: pa.Table) -> pa.Table:
    values = pa.array([3 * number for number in batch["id"].to_pylist()])
    return pa.table({"_rowaddr": batch["_rowaddr"], "_fragid": batch["_fragid"], "thrice": values})


class Table:
    """Calls on one table of the server, by one caller."""

    def __init__(self, server: Server, table_id: list[str], caller: str = "owner") -> None:
        self.at = server.location(table_id, caller)

    def write(self, start: int, stop: int, mode: str, **options: Any) -> None:
        lr.write_lance(people(start, stop), mode=mode, **options, **self.at)

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
        where = {name: value for name, value in self.at.items() if name != "table_id"}
        results = lr.compact_database(database=self.at["table_id"][:-1], num_workers=2, **where)
        return [[result["table_id"][-1]] for result in results]


def calls(server: Server) -> list[Call]:
    """Every call, in an order in which they build on each other."""
    main, copy = Table(server, PEOPLE), Table(server, COPY)
    return [
        Call(
            "create",
            'write_lance(ds, …, mode="create")',
            lambda: main.write(0, 300, "create"),
            seen=Seen(PEOPLE, 300, 1),
        ),
        Call(
            "create again",
            'write_lance(ds, …, mode="create")',
            lambda: main.write(0, 1, "create"),
            refusal="already exists",
        ),
        Call(
            "append",
            'write_lance(ds, …, mode="append")',
            lambda: main.write(300, 600, "append"),
            seen=Seen(PEOPLE, 600, 2),
        ),
        added_by_lancedb(server, Seen(PEOPLE, 610, 3), 600, 610),
        Call("… is there", "read_lance(…).count()", main.count, [[610]]),
        Call(
            "columns and a filter",
            'read_lance(…, columns=["name"], filter="id = 7")',
            lambda: main.rows(columns=["name"], filter="id = 7"),
            [["n7"]],
        ),
        Call("overwrite nothing", 'write_lance(ds, …, mode="overwrite")', lambda: copy.write(0, 10, "overwrite")),
        Call(
            "overwrite",
            'write_lance(ds, …, mode="overwrite")',
            lambda: copy.write(0, 20, "overwrite"),
            seen=Seen(COPY, 20, 2),
        ),
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
        Call("merge a column in", "merge_columns_from(…, ds)", main.merge_column, seen=Seen(PEOPLE, 610, 5)),
        Call(
            "see the column",
            'read_lance(…, columns=["thrice"])',
            lambda: main.rows(columns=["thrice"], filter="id = 21"),
            [[63]],
        ),
        Call("a scalar index", 'create_scalar_index(…, index_type="BTREE")', lambda: main.index("id", "BTREE")),
        Call("a text index", 'create_scalar_index(…, index_type="INVERTED")', lambda: main.index("name", "INVERTED")),
        Call("a vector index", 'create_index(…, index_type="IVF_FLAT")', main.vector_index, seen=Seen(PEOPLE, 610, 8)),
        Call("extend the indexes", "optimize_indices(…)", main.optimize),
        Call("vector search", "vector_search(…, nearest)", main.search, [[7]]),
        Call("compact", "compact_files(…)", main.compact),
        Call("compact a namespace", "compact_database(…)", main.compact_all, [["copy"], ["people"]]),
        Call("count at the end", "read_lance(…).count()", main.count, [[610]]),
    ]


def elsewhere(server: Server) -> list[Call]:
    nested, missing = Table(server, NESTED), Table(server, ["team", "missing"])
    return [
        Call(
            "create in a nested namespace",
            'write_lance(ds, table_id=["team", "inner", "people"], …)',
            lambda: nested.write(0, 3, "create"),
            seen=Seen(NESTED, 3, 1),
        ),
        added_by_lancedb(server, Seen(NESTED, 4, 2), 3, 4),
        Call("… is there", "read_lance(…).count()", nested.count, [[4]]),
        Call(
            "append to what is not there",
            'write_lance(ds, mode="append", …)',
            lambda: missing.write(0, 1, "append"),
            refusal="not found",
        ),
        Call(
            "append as a stream",
            'write_lance(ds, mode="append", stream=True, …)',
            lambda: nested.write(4, 5, "append", stream=True),
            refusal="stream",
            known="no streams into tables of a namespace",
        ),
    ]


def permissions(server: Server) -> list[Call]:
    if not server.is_guarded:
        return []
    reader, stranger = Table(server, NESTED, "reader"), Table(server, NESTED, "stranger")
    return [
        Call("read with `read` alone", "read_lance(…).count()", reader.count, [[4]]),
        Call(
            "append with `read` alone",
            'write_lance(ds, mode="append", …)',
            lambda: reader.write(0, 1, "append"),
            rows=[],
            known=RETRY,
            seen=Seen(NESTED, 4, 2),
        ),
        Call(
            "create with `read` alone",
            'write_lance(ds, mode="create", …)',
            lambda: Table(server, ["team", "other"], "reader").write(0, 1, "create"),
            refusal="Permission denied",
        ),
        Call("without a key", "read_lance(…).count()", stranger.count, refusal="Unauthenticated"),
    ]


def main() -> None:
    server = server_of_command()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    DataContext.get_current().default_hash_shuffle_parallelism = 2
    lr.init_global_pool(2)
    make([*calls(server), *elsewhere(server), *permissions(server)], server)
    lr.clear_global_pool(close=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
