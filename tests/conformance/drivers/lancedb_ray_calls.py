"""Make every call of lancedb-ray over `db://`, as `calls` has it."""

from __future__ import annotations

from typing import Any

import ray
from lancedb_ray import read_lancedb, write_lancedb

from calls import Call, Seen, Server, added_by_lancedb, make, server_of_command, table_of

PEOPLE, COPY, NESTED = ["team", "people"], ["team", "copy"], ["team", "inner", "people"]
COUNTED_AND_READ = "it counts with the filter, and reads as many rows from the start without it"


class Table:
    """Calls on one table of the server, by one caller."""

    def __init__(self, server: Server, table_id: list[str], caller: str = "owner") -> None:
        *path, self.name = table_id
        key = server.keys.get(caller, "none")
        self.at = {"uri": f"db://{'/'.join(path)}", "api_key": key, "host_override": server.recorded}

    def write(self, start: int, stop: int, mode: str, **options: Any) -> None:
        write_lancedb(ray.data.from_arrow(table_of(start, stop)), self.name, mode=mode, **options, **self.at)

    def upsert(self, start: int, stop: int) -> None:
        self.write(start, stop, "upsert", on="id", partition_on_keys=False)

    def count(self, **options: Any) -> list[list[int]]:
        return [[read_lancedb(self.name, **options, **self.at).count()]]

    def ids(self, condition: str, **options: Any) -> list[list[int]]:
        rows = read_lancedb(self.name, columns=["id"], filter=condition, **options, **self.at)
        return [[row["id"]] for row in rows.take_all()]


def calls(server: Server) -> list[Call]:
    people, copy, nested = Table(server, PEOPLE), Table(server, COPY), Table(server, NESTED)
    few = [[607], [608], [609]]
    return [
        Call(
            "create",
            'write_lancedb(ds, "people", mode="create", …)',
            lambda: people.write(0, 300, "create"),
            seen=Seen(PEOPLE, 300, 2),
        ),
        Call(
            "create again",
            'write_lancedb(ds, "people", mode="create", …)',
            lambda: people.write(0, 1, "create"),
            refusal="already exists",
        ),
        Call(
            "append",
            'write_lancedb(ds, "people", mode="append", …)',
            lambda: people.write(300, 600, "append"),
            seen=Seen(PEOPLE, 600, 3),
        ),
        added_by_lancedb(server, Seen(PEOPLE, 610, 4), 600, 610),
        Call("… is there", 'read_lancedb("people", …).count()', people.count, [[610]]),
        Call(
            "columns and a filter",
            'read_lancedb("people", columns=["id"], filter="id > 606", …)',
            lambda: people.ids("id > 606"),
            few,
        ),
        Call(
            "the same by pages",
            'read_lancedb(…, remote_read_strategy="pagination")',
            lambda: people.ids("id > 606", remote_read_strategy="pagination"),
            few,
        ),
        Call(
            "the same by offsets",
            'read_lancedb(…, remote_read_strategy="offsets")',
            lambda: people.ids("id > 606", remote_read_strategy="offsets"),
            [[0], [1], [2]],
            known=COUNTED_AND_READ,
        ),
        Call(
            "upsert",
            'write_lancedb(ds, "people", mode="upsert", on="id", partition_on_keys=False, …)',
            lambda: people.upsert(605, 620),
            seen=Seen(PEOPLE, 620, 5),
        ),
        Call(
            "an earlier version",
            'read_lancedb("people", version=3, …).count()',
            lambda: people.count(version=3),
            [[600]],
        ),
        Call(
            "create what is overwritten",
            'write_lancedb(ds, "copy", mode="create", …)',
            lambda: copy.write(0, 10, "create"),
        ),
        Call(
            "overwrite",
            'write_lancedb(ds, "copy", mode="overwrite", …)',
            lambda: copy.write(0, 20, "overwrite"),
            seen=Seen(COPY, 20, 4),
        ),
        Call(
            "create in a nested namespace",
            'write_lancedb(ds, …, uri="db://team/inner", mode="create")',
            lambda: nested.write(0, 3, "create"),
            seen=Seen(NESTED, 3, 2),
        ),
        added_by_lancedb(server, Seen(NESTED, 4, 3), 3, 4),
        Call("… is there", 'read_lancedb(…, uri="db://team/inner").count()', nested.count, [[4]]),
        Call(
            "a table by its full name",
            'read_lancedb("team$people", …)',
            Table(server, ["team", "team$people"]).count,
            refusal="team$people",
            known="a name has no delimiter: the database is the namespace",
        ),
    ]


def permissions(server: Server) -> list[Call]:
    if not server.is_guarded:
        return []
    reader, stranger = Table(server, NESTED, "reader"), Table(server, NESTED, "stranger")
    return [
        Call("read with `read` alone", "read_lancedb(…).count()", reader.count, [[4]]),
        Call(
            "append with `read` alone",
            'write_lancedb(ds, …, mode="append")',
            lambda: reader.write(0, 1, "append"),
            refusal="403",
            seen=Seen(NESTED, 4, 3),
        ),
        Call(
            "create with `read` alone",
            'write_lancedb(ds, …, mode="create")',
            lambda: Table(server, ["team", "other"], "reader").write(0, 1, "create"),
            refusal="403",
        ),
        Call("without a key that is valid", "read_lancedb(…).count()", stranger.count, refusal="401"),
    ]


def main() -> None:
    server = server_of_command()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    make([*calls(server), *permissions(server)], server)
    ray.shutdown()


if __name__ == "__main__":
    main()
