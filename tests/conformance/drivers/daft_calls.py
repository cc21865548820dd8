"""Make every call of Daft with daft-lance, as `calls` has it."""

from __future__ import annotations

from typing import Any

import daft
import daft_lance
import pyarrow as pa

from calls import Call, Seen, Server, added_by_lancedb, make, server_of_command, table_of

PEOPLE, COPY, NESTED = ["team", "people"], ["team", "copy"], ["team", "inner", "people"]


def thrice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([3 * number for number in batch["id"].to_pylist()])], ["thrice"])


class Table:
    """Calls on one table of the server, by one caller."""

    def __init__(self, server: Server, table_id: list[str], caller: str = "owner") -> None:
        self.at = server.location(table_id, caller)

    def write(self, start: int, stop: int, mode: str, **options: Any) -> None:
        daft_lance.write_lance(daft.from_arrow(table_of(start, stop)), mode=mode, **options, **self.at).collect()

    def count(self, **options: Any) -> list[list[int]]:
        return [[daft_lance.read_lance(**options, **self.at).count_rows()]]

    def read(self, condition: str, *columns: str, **options: Any) -> list[list[Any]]:
        frame = daft_lance.read_lance(**options, **self.at)
        kept = frame.where(daft.sql_expr(condition)).select(*columns)
        return [[row[column] for column in columns] for row in kept.to_pylist()]

    def nearest(self) -> list[list[int]]:
        search = {"nearest": {"column": "vector", "q": [7.0, 1.0], "k": 1}}
        return [[row["id"]] for row in daft_lance.read_lance(default_scan_options=search, **self.at).to_pylist()]

    def addressed(self) -> Any:
        """Return the table with what its rows are found by when columns are written into them."""
        options = {"with_row_address": True}
        return daft_lance.read_lance(default_scan_options=options, include_fragment_id=True, **self.at)

    def merge_frame(self) -> None:
        frame = self.addressed().with_column("four", daft.col("id") * 4)
        daft_lance.merge_columns_df(frame.select("_rowaddr", "fragment_id", "four"), **self.at)

    def update_frame(self) -> None:
        frame = self.addressed().with_column("name", daft.lit("anew"))
        daft_lance.update_columns_df(frame.select("_rowaddr", "fragment_id", "name"), columns=["name"], **self.at)

    def merge(self, transform: Any) -> None:
        daft_lance.merge_columns(transform=transform, read_columns=["id"], **self.at)

    def index(self, column: str, kind: str) -> None:
        daft_lance.create_scalar_index(column=column, index_type=kind, **self.at)

    def optimize(self) -> None:
        daft_lance.optimize_indices(**self.at)

    def compact(self) -> None:
        daft_lance.compact_files(**self.at)


def rows_and_columns(server: Server, people: Table, copy: Table) -> list[Call]:
    at = "read_lance(…)"
    return [
        Call(
            "create",
            'write_lance(df, mode="create", …)',
            lambda: people.write(0, 300, "create"),
            seen=Seen(PEOPLE, 300, 1),
        ),
        Call(
            "create again",
            'write_lance(df, mode="create", …)',
            lambda: people.write(0, 1, "create"),
            refusal="already exists",
        ),
        Call(
            "append",
            'write_lance(df, mode="append", …)',
            lambda: people.write(300, 600, "append"),
            seen=Seen(PEOPLE, 600, 2),
        ),
        added_by_lancedb(server, Seen(PEOPLE, 610, 3), 600, 610),
        Call("… is there", f"{at}.count_rows()", people.count, [[610]]),
        Call(
            "columns and a filter",
            f'{at}.where("id = 7").select("name")',
            lambda: people.read("id = 7", "name"),
            [["n7"]],
        ),
        Call("overwrite nothing", 'write_lance(df, mode="overwrite", …)', lambda: copy.write(0, 10, "overwrite")),
        Call(
            "overwrite",
            'write_lance(df, mode="overwrite", …)',
            lambda: copy.write(0, 20, "overwrite"),
            seen=Seen(COPY, 20, 2),
        ),
        Call(
            "replace some rows",
            'write_lance(df, mode="insert_overwrite", overwrite_where="id < 5", …)',
            lambda: copy.write(100, 101, "insert_overwrite", overwrite_where="id < 5"),
            seen=Seen(COPY, 16, 3),
        ),
        Call("an earlier version", "read_lance(version=1, …).count_rows()", lambda: copy.count(version=1), [[10]]),
        Call("add a column by SQL", 'merge_columns({"twice": "id * 2"}, …)', lambda: people.merge({"twice": "id * 2"})),
        Call(
            "add a column by a function",
            "merge_columns(function, …)",
            lambda: people.merge(thrice),
            seen=Seen(PEOPLE, 610, 5),
        ),
        Call("add a column of a frame", "merge_columns_df(df, …)", people.merge_frame, seen=Seen(PEOPLE, 610, 6)),
        Call(
            "see the columns",
            f'{at}.where("id = 21").select(…)',
            lambda: people.read("id = 21", "twice", "thrice", "four"),
            [[42, 63, 84]],
        ),
        Call(
            "update a column from a frame",
            'update_columns_df(df, columns=["name"], …)',
            people.update_frame,
            seen=Seen(PEOPLE, 610, 7),
        ),
        Call(
            "see the values",
            f'{at}.where("id = 605").select("name")',
            lambda: people.read("id = 605", "name"),
            [["anew"]],
        ),
    ]


def indexes(people: Table) -> list[Call]:
    return [
        Call(
            "a scalar index",
            'create_scalar_index(column="id", index_type="BTREE", …)',
            lambda: people.index("id", "BTREE"),
            seen=Seen(PEOPLE, 610, 8),
        ),
        Call(
            "a text index",
            'create_scalar_index(column="name", index_type="INVERTED", …)',
            lambda: people.index("name", "INVERTED"),
            seen=Seen(PEOPLE, 610, 9),
        ),
        Call("extend the indexes", "optimize_indices(…)", people.optimize),
        Call("compact", "compact_files(…)", people.compact),
        Call(
            "vector search, in the files",
            'read_lance(default_scan_options={"nearest": …}, …)',
            people.nearest,
            [[7]],
        ),
    ]


def elsewhere(server: Server) -> list[Call]:
    nested, missing = Table(server, NESTED), Table(server, ["team", "missing"])
    return [
        Call(
            "create in a nested namespace",
            'write_lance(df, table_id=["team", "inner", "people"], …)',
            lambda: nested.write(0, 3, "create"),
            seen=Seen(NESTED, 3, 1),
        ),
        added_by_lancedb(server, Seen(NESTED, 4, 2), 3, 4),
        Call("… is there", "read_lance(…).count_rows()", nested.count, [[4]]),
        Call(
            "append to what is not there",
            'write_lance(df, mode="append", …)',
            lambda: missing.write(0, 1, "append"),
            refusal="not found",
        ),
        Call(
            "create in a namespace that is not there",
            'write_lance(df, mode="create", …)',
            lambda: Table(server, ["nowhere", "people"]).write(0, 1, "create"),
            refusal="nowhere",
        ),
        Call(
            "by a URI",
            'daft.read_lance("rest://…")',
            lambda: daft.read_lance("rest://team/people").collect(),
            refusal="rest",
            known="its URIs are those of storage",
        ),
    ]


def permissions(server: Server) -> list[Call]:
    if not server.is_guarded:
        return []
    reader, stranger = Table(server, NESTED, "reader"), Table(server, NESTED, "stranger")
    return [
        Call("read with `read` alone", "read_lance(…).count_rows()", reader.count, [[4]]),
        Call(
            "append with `read` alone",
            'write_lance(df, mode="append", …)',
            lambda: reader.write(0, 1, "append"),
            refusal="AccessDenied",
            seen=Seen(NESTED, 4, 2),
        ),
        Call(
            "create with `read` alone",
            'write_lance(df, mode="create", …)',
            lambda: Table(server, ["team", "other"], "reader").write(0, 1, "create"),
            refusal="Permission denied",
        ),
        Call("without a key", "read_lance(…).count_rows()", stranger.count, refusal="Unauthenticated"),
    ]


def main() -> None:
    server = server_of_command()
    people = Table(server, PEOPLE)
    calls = [*rows_and_columns(server, people, Table(server, COPY)), *indexes(people), *elsewhere(server)]
    make([*calls, *permissions(server)], server)


if __name__ == "__main__":
    main()
