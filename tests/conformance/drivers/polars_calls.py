"""Make every call of polars-pylance, as `calls` has it."""

from __future__ import annotations

from typing import Any

import lance
import polars as pl
import polars_pylance as pll
import pyarrow as pa

from calls import Call, Seen, Server, added_by_lancedb, make, server_of_command, table_of

PEOPLE, COPY, NESTED = ["team", "people"], ["team", "copy"], ["team", "inner", "people"]
BY_PATH = "it opens the path again, without the credentials of the dataset"


class Table:
    """Calls on one table of the server, by one caller. Polars is given datasets: it knows no namespaces."""

    def __init__(self, server: Server, table_id: list[str], caller: str = "owner") -> None:
        self.server, self.table_id, self.caller = server, table_id, caller

    def dataset(self, **options: Any) -> lance.LanceDataset:
        return self.server.dataset(self.table_id, self.caller, **options)

    def create(self, start: int, stop: int) -> None:
        """Create the table of a stream, whose types are those of a sink: `to_arrow` makes large strings of strings."""
        rows = pa.RecordBatchReader.from_stream(pl.from_arrow(table_of(start, stop)))
        lance.write_dataset(rows, namespace_client=self.server.namespace(self.caller), table_id=self.table_id)

    def append_to_large_strings(self) -> None:
        rows = pl.from_arrow(table_of(0, 1)).to_arrow()
        lance.write_dataset(rows, namespace_client=self.server.namespace(), table_id=self.table_id)
        self.sink(1, 2, "append")

    def scan(self, *, version: int | None = None, **options: Any) -> pl.LazyFrame:
        dataset = self.dataset(version=version)
        return pll.scan_lance(dataset, storage_options=dataset.latest_storage_options(), **options)

    def count(self, **options: Any) -> list[list[int]]:
        return rows_of(self.scan(**options).select(pl.len()))

    def count_fragments(self) -> list[list[int]]:
        dataset = self.dataset()
        frames = pll.scan_lance_fragments(dataset, storage_options=dataset.latest_storage_options())
        return rows_of(pl.concat(frames).select(pl.len()))

    def scan_plainly(self) -> list[list[int]]:
        return rows_of(pll.scan_lance(self.dataset()).select(pl.len()))

    def sink(self, start: int, stop: int, mode: str) -> None:
        dataset = self.dataset()
        frame = pl.from_arrow(table_of(start, stop))
        pll.sink_lance(frame, dataset, mode=mode, storage_options=dataset.latest_storage_options())

    def sink_plainly(self, start: int, stop: int, **mode: str) -> None:
        pll.sink_lance(pl.from_arrow(table_of(start, stop)), self.dataset(), **mode)

    def create_by_sink(self) -> None:
        where = {"namespace_client": self.server.namespace(), "table_id": self.table_id}
        pll.sink_lance(pl.from_arrow(table_of(0, 1)), "people", mode="create", **where)


def rows_of(frame: pl.LazyFrame) -> list[list[Any]]:
    return [list(row) for row in frame.collect().rows()]


def by_path(server: Server) -> tuple[str, str]:
    """Return the fault of what has no storage options, and its error: both empty where storage needs none."""
    return (BY_PATH, "CredentialsNotLoaded") if server.is_guarded else ("", "")


def reading(server: Server, people: Table) -> list[Call]:
    scan, known, refusal = "scan_lance(ds, storage_options=…)", *by_path(server)
    return [
        Call(
            "create",
            "lance.write_dataset(RecordBatchReader.from_stream(df), …)",
            lambda: people.create(0, 300),
            seen=Seen(PEOPLE, 300, 1),
        ),
        Call(
            "scan a dataset", "scan_lance(ds).select(len())", people.scan_plainly, [[300]], refusal=refusal, known=known
        ),
        Call("scan it with its options", f"{scan}.select(len())", people.count, [[300]]),
        added_by_lancedb(server, Seen(PEOPLE, 310, 2), 300, 310),
        Call("… is there", f"{scan}.select(len())", people.count, [[310]]),
        Call(
            "columns and a filter",
            f'{scan}.filter(col("id") == 7).select("name")',
            lambda: rows_of(people.scan().filter(pl.col("id") == 7).select("name")),
            [["n7"]],
        ),
        Call(
            "aggregate",
            f"{scan}.group_by(…).agg(…)",
            lambda: rows_of(people.scan().group_by(pl.col("id") % 2).agg(pl.col("name").count())),
            [[0, 155], [1, 155]],
        ),
        Call(
            "vector search, in the files",
            "scan_lance(ds, nearest=…, …)",
            lambda: rows_of(people.scan(nearest={"column": "vector", "q": [7.0, 1.0], "k": 1}).select("id")),
            [[7]],
        ),
        Call("scan by fragments", "scan_lance_fragments(ds, …)", people.count_fragments, [[310]]),
        Call("an earlier version", "scan_lance(ds, …)", lambda: people.count(version=1), [[300]]),
        Call(
            "scan by a namespace",
            "scan_lance(namespace_client=…)",
            lambda: pll.scan_lance(namespace_client=server.namespace(), table_id=PEOPLE),
            refusal="unexpected keyword",
            known="it takes a path or an opened dataset",
        ),
    ]


def writing(server: Server, people: Table) -> list[Call]:
    nested, (known, refusal) = Table(server, NESTED), by_path(server)
    sink = 'sink_lance(df, ds, mode="{}", storage_options=…)'
    return [
        Call("append", sink.format("append"), lambda: people.sink(310, 320, "append"), seen=Seen(PEOPLE, 320, 3)),
        Call(
            "upsert",
            'sink_lance(df, ds, mode="merge", on="id")',
            lambda: people.sink_plainly(315, 330, mode="merge", on="id"),
            seen=Seen(PEOPLE, 330, 4),
        ),
        Call("overwrite", sink.format("overwrite"), lambda: people.sink(0, 20, "overwrite"), seen=Seen(PEOPLE, 20, 5)),
        Call(
            "create by a sink",
            'sink_lance(df, …, mode="create", namespace_client=…)',
            Table(server, ["team", "other"]).create_by_sink,
            refusal="Cannot specify both",
            known="it hands Lance a path as well",
        ),
        Call(
            "append to a table of `df.to_arrow()`",
            sink.format("append"),
            Table(server, ["team", "large"]).append_to_large_strings,
            refusal="different schema",
            known="`to_arrow` makes another type of strings than a sink",
        ),
        Call(
            "create in a nested namespace",
            "lance.write_dataset(RecordBatchReader.from_stream(df), …)",
            lambda: nested.create(0, 3),
            seen=Seen(NESTED, 3, 1),
        ),
        added_by_lancedb(server, Seen(NESTED, 4, 2), 3, 4),
        Call("… is there", "scan_lance(ds, storage_options=…).select(len())", nested.count, [[4]]),
        Call(
            "append without options",
            'sink_lance(df, ds, mode="append")',
            lambda: Table(server, COPY).sink_plainly(10, 20, mode="append"),
            refusal=refusal,
            known=known,
        ),
    ]


def permissions(server: Server) -> list[Call]:
    if not server.is_guarded:
        return []
    reader, stranger = Table(server, NESTED, "reader"), Table(server, NESTED, "stranger")
    unchanged = Seen(NESTED, 4, 2)
    return [
        Call("read with `read` alone", "scan_lance(ds, storage_options=…).select(len())", reader.count, [[4]]),
        Call(
            "append with `read` alone",
            'sink_lance(df, ds, mode="append", storage_options=…)',
            lambda: reader.sink(0, 1, "append"),
            refusal="AccessDenied",
            seen=unchanged,
        ),
        Call(
            "upsert with `read` alone",
            'sink_lance(df, ds, mode="merge", on="id")',
            lambda: reader.sink_plainly(0, 1, mode="merge", on="id"),
            refusal="AccessDenied",
            seen=unchanged,
        ),
        Call(
            "create with `read` alone",
            "lance.write_dataset(RecordBatchReader.from_stream(df), …)",
            lambda: Table(server, ["team", "other"], "reader").create(0, 1),
            refusal="Permission denied",
        ),
        Call("without a key", "lance.dataset(…)", stranger.dataset, refusal="Unauthenticated"),
    ]


def main() -> None:
    server = server_of_command()
    people = Table(server, PEOPLE)
    Table(server.unrecorded(), COPY).create(0, 10)
    make([*reading(server, people), *writing(server, people), *permissions(server)], server)


if __name__ == "__main__":
    main()
