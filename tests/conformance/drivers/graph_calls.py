"""Make every call of lance-graph, as `calls` has it. It reads datasets, and has no writes or namespaces of its own."""

from __future__ import annotations

from typing import Any

import lance
import lance_graph
import pyarrow as pa

from calls import Call, Seen, Server, added_by_lancedb, make, server_of_command, table_of, values

PEOPLE, KNOWS, NESTED = ["team", "people"], ["team", "knows"], ["team", "inner", "people"]
BUILDER = lance_graph.GraphConfig.builder().with_node_label("Person", "id")
CONFIG = BUILDER.with_relationship("KNOWS", "one", "other").build()
COUNT = "MATCH (p:Person) RETURN count(*) AS n"
FRIENDS = "MATCH (a:Person)-[:KNOWS]->(b:Person) WHERE a.id = 1 RETURN b.name"
TWO_HOPS = "MATCH (a:Person)-[:KNOWS]->(b:Person)-[:KNOWS]->(c:Person) WHERE a.id = 1 RETURN c.name"


class Graph:
    """Queries over the tables of a server, by one caller."""

    def __init__(self, server: Server, people: list[str], caller: str = "owner") -> None:
        self.server, self.people, self.caller = server, people, caller

    def datasets(self) -> dict[str, Any]:
        knows = {"KNOWS": self.server.dataset(KNOWS, self.caller)} if self.people == PEOPLE else {}
        return {"Person": self.server.dataset(self.people, self.caller), **knows}

    def run(self, text: str, tables: dict[str, Any] | None = None, **parameters: Any) -> list[list[Any]]:
        query = lance_graph.CypherQuery(text).with_config(CONFIG)
        for name, value in parameters.items():
            query = query.with_parameter(name, value)
        return values(query.execute(tables or self.datasets()))

    def nearest(self) -> list[list[Any]]:
        query = lance_graph.CypherQuery("MATCH (p:Person) RETURN p.id, p.vector").with_config(CONFIG)
        search = lance_graph.VectorSearch("p.vector").query_vector([7.0, 1.0]).metric(lance_graph.DistanceMetric.L2)
        return [row[:1] for row in values(query.execute_with_vector_rerank(self.datasets(), search.top_k(1)))]

    def columns_alone(self) -> list[list[Any]]:
        return self.run(COUNT, {"Person": self.server.dataset(self.people).to_table(columns=["id"])})

    def store(self) -> None:
        """Write what a query found into a table of the server."""
        found = lance_graph.CypherQuery("MATCH (p:Person) WHERE p.id < 5 RETURN p.id AS id, p.name AS name")
        rows = found.with_config(CONFIG).execute(self.datasets())
        lance.write_dataset(rows, namespace_client=self.server.namespace(), table_id=["team", "found"])


def knows() -> pa.Table:
    return pa.table({"one": pa.array([1, 1, 2, 3], pa.int64()), "other": pa.array([2, 3, 4, 5], pa.int64())})


def calls(server: Server) -> list[Call]:
    graph, nested = Graph(server, PEOPLE), Graph(server, NESTED)
    execute = "CypherQuery({}).execute({{…: ds}})"
    return [
        Call("count nodes", execute.format("MATCH (p:Person) RETURN count(*)"), lambda: graph.run(COUNT), [[10]]),
        added_by_lancedb(server, Seen(PEOPLE, 12, 2), 10, 12),
        Call("… is there", execute.format("MATCH (p:Person) RETURN count(*)"), lambda: graph.run(COUNT), [[12]]),
        Call("a relation", execute.format("MATCH (a)-[:KNOWS]->(b) …"), lambda: graph.run(FRIENDS), [["n2"], ["n3"]]),
        Call(
            "two relations",
            execute.format("MATCH (a)-[:KNOWS]->(b)-[:KNOWS]->(c) …"),
            lambda: graph.run(TWO_HOPS),
            [["n4"], ["n5"]],
        ),
        Call(
            "a parameter",
            execute.format("… WHERE p.id = $id …"),
            lambda: graph.run("MATCH (p:Person) WHERE p.id = $id RETURN p.name", id=11),
            refusal='No field named "$id"',
            known="it does not put the value in",
        ),
        Call("rerank by vectors", "CypherQuery(…).execute_with_vector_rerank({…: ds}, …)", graph.nearest, [[7]]),
        Call(
            "the columns that it needs",
            execute.format("…").replace("ds", 'ds.to_table(columns=["id"])'),
            graph.columns_alone,
            [[12]],
        ),
        Call(
            "a table by its name",
            'CypherQuery(…).execute({…: "team$people"})',
            lambda: graph.run(COUNT, {"Person": "team$people"}),
            refusal="TypeError",
            known="it takes opened datasets and Arrow tables",
        ),
        Call("store what was found", "lance.write_dataset(found, …)", graph.store, seen=Seen(["team", "found"], 5, 1)),
        Call(
            "a nested namespace", execute.format("MATCH (p:Person) RETURN count(*)"), lambda: nested.run(COUNT), [[3]]
        ),
    ]


def permissions(server: Server) -> list[Call]:
    if not server.is_guarded:
        return []
    reader, stranger = Graph(server, PEOPLE, "reader"), Graph(server, PEOPLE, "stranger")
    return [
        Call("read with `read` alone", "CypherQuery(…).execute({…: ds})", lambda: reader.run(COUNT), [[12]]),
        Call("without a key", "lance.dataset(…)", stranger.datasets, refusal="Unauthenticated"),
    ]


def main() -> None:
    server = server_of_command()
    for table_id, rows in ((PEOPLE, table_of(0, 10)), (KNOWS, knows()), (NESTED, table_of(0, 3))):
        lance.write_dataset(rows, namespace_client=server.unrecorded().namespace(), table_id=table_id)
    make([*calls(server), *permissions(server)], server)


if __name__ == "__main__":
    main()
