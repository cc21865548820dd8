"""Make every call of a vector store, for `tests.conformance.vector_stores`, which imports nothing of the tests.

    python store_calls.py langchain|llamaindex '{"url": …, "recorded": …, "key": …, "connection": "db"|"namespace"}'

Each line of standard output that begins with MARK says what became of one call: `what`, `call`, `rows` or `error`, and
what was expected of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import lancedb
from lance_namespace.errors import TableNotFoundError

MARK = "\x1e"
NO_ADDITION = "it takes any connection but that of a folder for none, and opens a folder"


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its purpose, its code, its function, and its rows or a part of its error; `known` is a client's fault."""

    what: str
    written: str
    function: Callable[[], Any]
    rows: list[Any] | None = None
    refusal: str = ""
    known: str = ""


def make(calls: Iterable[Call]) -> None:
    """Make every call, in an order in which they build on each other."""
    for call in calls:
        line: dict[str, Any] = {"what": call.what, "call": call.written, "expected": call.rows}
        try:
            result = call.function()
        except Exception as error:  # noqa: BLE001  # whatever went wrong is the answer
            line["error"] = f"{type(error).__name__}: {error}"
        else:
            line["rows"] = result if isinstance(result, list) else []
        sys.stdout.write(f"{MARK}{json.dumps({**line, 'refusal': call.refusal, 'known': call.known})}\n")
        sys.stdout.flush()


@dataclass(frozen=True)
class Server:
    """The server, and the connection that a store is given, whose requests are recorded."""

    url: str
    key: str
    connection: Any

    def rows(self, table: str) -> list[Any]:
        """Return how many rows the server has, whichever way they came."""
        db = lancedb.connect("db://any", api_key=self.key, host_override=self.url)
        return [[db.open_table(table).count_rows()]]


def server_of_command() -> Server:
    given = json.loads(sys.argv[2])
    recorded, key = given["recorded"], given["key"]
    if given["connection"] == "db":
        connection: Any = lancedb.connect("db://any", api_key=key, host_override=recorded)
    else:
        connection = lancedb.connect_namespace("rest", {"uri": recorded, "header.x-api-key": key})
    return Server(given["url"], key, connection)


def langchain(server: Server) -> list[Call]:
    from langchain_community.vectorstores import LanceDB
    from langchain_core.documents import Document
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_lancedb import LanceDB as NewLanceDB

    embedding, name = DeterministicFakeEmbedding(size=32), "langchain"
    with tempfile.TemporaryDirectory() as folder:
        before = LanceDB(connection=server.connection, embedding=embedding, uri=folder)
    lancedb.db.LanceDBConnection.register(type(server.connection))
    options = {"connection": server.connection, "embedding": embedding, "table_name": name, "mode": "append"}
    texts, metadatas = ["one", "two", "three"], [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}, {"n": 3, "s": "c"}]
    store = LanceDB.from_texts(["zero"], metadatas=[{"n": 0, "s": "z"}], **options)

    def found(documents: list[Any]) -> list[Any]:
        return [[document.page_content] for document in documents]

    def scored(documents: list[Any]) -> list[Any]:
        return [[document.page_content, score] for document, score in documents]

    def then_rows(_: Any) -> list[Any]:
        return server.rows(name)

    def check_connection() -> None:
        assert before._connection is server.connection, "it opened a folder"

    class Store(NewLanceDB):
        def _get_or_create_table(self, data: list[dict[str, Any]] | None = None) -> tuple[Any, bool]:
            try:
                return server.connection.open_table(self._table_name), False
            except (ValueError, TableNotFoundError):
                return (server.connection.create_table(self._table_name, data), True) if data else (None, False)

    new = Store(embedding, table_name="newer")

    def then_newer_rows(_: Any) -> list[Any]:
        return server.rows("newer")

    search = store.similarity_search
    return [
        Call(
            "hand over a connection, not registered",
            "LanceDB(connection=db, …)",
            check_connection,
            refusal="it opened a folder",
            known=NO_ADDITION,
        ),
        Call(
            "create from texts",
            'LanceDB.from_texts(texts, embedding, connection=db, mode="append", …)',
            lambda: server.rows(name),
            [[1]],
        ),
        Call(
            "add texts",
            "store.add_texts(texts, metadatas, ids)",
            lambda: then_rows(store.add_texts(texts, metadatas, ["1", "2", "3"])),
            [[4]],
        ),
        Call(
            "add documents",
            "store.add_documents(documents)",
            lambda: then_rows(store.add_documents([Document("four", metadata={"n": 4, "s": "d"})])),
            [[5]],
        ),
        Call(
            "from documents",
            "LanceDB.from_documents(documents, embedding, …)",
            lambda: then_rows(LanceDB.from_documents([Document("five", metadata={"n": 5, "s": "e"})], **options)),
            [[6]],
        ),
        Call(
            "add, asynchronously",
            "await store.aadd_texts(texts)",
            lambda: then_rows(asyncio.run(store.aadd_texts(["six"], [{"n": 6, "s": "f"}]))),
            [[7]],
        ),
        Call("search", "store.similarity_search(text, k=1)", lambda: found(search("two", k=1)), [["two"]]),
        Call(
            "search, asynchronously",
            "await store.asimilarity_search(text, k=1)",
            lambda: found(asyncio.run(store.asimilarity_search("two", k=1))),
            [["two"]],
        ),
        Call(
            "with a filter of values",
            'filter={"metadata.s": "b"}, prefilter=True',
            lambda: found(search("one", k=1, filter={"metadata.s": "b"}, prefilter=True)),
            [["two"]],
        ),
        Call(
            "with a filter of SQL",
            'filter="metadata.n > 2", prefilter=True',
            lambda: found(search("three", k=1, filter="metadata.n > 2", prefilter=True)),
            [["three"]],
        ),
        Call(
            "with a filter behind the search",
            'filter="metadata.n > 2"',
            lambda: found(search("one", k=1, filter="metadata.n > 2")),
            [],
        ),
        Call(
            "with another distance",
            'store.similarity_search(text, k=1, metrics="cosine")',
            lambda: found(search("two", k=1, metrics="cosine")),
            [["two"]],
        ),
        Call(
            "with scores",
            "store.similarity_search_with_score(text, k=1)",
            lambda: scored(store.similarity_search_with_score("two", k=1)),
            [["two", 0.0]],
        ),
        Call(
            "with relevance",
            "store.similarity_search_with_relevance_scores(text, k=1)",
            lambda: scored(store.similarity_search_with_relevance_scores("two", k=1)),
            [["two", 1.0]],
        ),
        Call(
            "by a vector",
            "store.similarity_search_by_vector(vector, k=1)",
            lambda: found(store.similarity_search_by_vector(embedding.embed_query("two"), k=1)),
            [["two"]],
        ),
        Call(
            "diverse (MMR)",
            "store.max_marginal_relevance_search(text, k=1, fetch_k=3)",
            lambda: found(store.max_marginal_relevance_search("two", k=1, fetch_k=3)),
            [["two"]],
        ),
        Call(
            "a retriever",
            'store.as_retriever(search_kwargs={"k": 1}).invoke(text)',
            lambda: found(store.as_retriever(search_kwargs={"k": 1}).invoke("three")),
            [["three"]],
        ),
        Call(
            "a retriever by MMR",
            'store.as_retriever(search_type="mmr", …).invoke(text)',
            lambda: found(store.as_retriever(search_type="mmr", search_kwargs={"k": 1}).invoke("three")),
            [["three"]],
        ),
        Call(
            "full text",
            'store.similarity_search(text, query_type="fts")',
            lambda: search("two", query_type="fts"),
            refusal="multiple values for keyword argument 'name'",
            known="it passes an argument twice: search the table itself",
        ),
        Call(
            "full text of the table itself",
            'db.open_table(…).search(text, query_type="fts")',
            lambda: _full_text(server, name),
            [["two"]],
        ),
        Call(
            "documents by their ids",
            "store.get_by_ids(ids)",
            lambda: store.get_by_ids(["1"]),
            refusal="get_by_ids",
            known="it has no such call",
        ),
        Call("an index of a column", 'store.create_index(col_name="id")', lambda: store.create_index(col_name="id")),
        Call("delete by ids", 'store.delete(ids=["1"])', lambda: then_rows(store.delete(ids=["1"])), [[6]]),
        Call(
            "delete by a filter",
            'store.delete(filter="metadata.n = 2")',
            lambda: then_rows(store.delete(filter="metadata.n = 2")),
            [[5]],
        ),
        Call("delete all", "store.delete(delete_all=True)", lambda: then_rows(store.delete(delete_all=True)), [[0]]),
        Call(
            "langchain-lancedb: add texts",
            "store.add_texts(texts, metadatas, ids)",
            lambda: then_newer_rows(new.add_texts(texts, metadatas, ["1", "2", "3"])),
            [[3]],
        ),
        Call(
            "langchain-lancedb: search",
            "store.similarity_search(text, k=1)",
            lambda: found(new.similarity_search("two", k=1)),
            [["two"]],
        ),
        Call(
            "langchain-lancedb: with scores",
            "store.similarity_search_with_score(text, k=1)",
            lambda: scored(new.similarity_search_with_score("two", k=1)),
            [["two", 0.0]],
        ),
        Call(
            "langchain-lancedb: a retriever",
            "store.as_retriever(…).invoke(text)",
            lambda: found(new.as_retriever(search_kwargs={"k": 1}).invoke("two")),
            [["two"]],
        ),
        Call("langchain-lancedb: delete", 'store.delete(["1"])', lambda: then_newer_rows(new.delete(["1"])), [[2]]),
    ]


def _full_text(server: Server, name: str, text: str = "two") -> list[Any]:
    """Search a table by an index of full text, once it is there: by `db://` it is made behind the call."""
    from datetime import timedelta

    table = server.connection.open_table(name)
    table.create_fts_index("text", replace=True)
    if hasattr(table, "wait_for_index"):
        table.wait_for_index(["text_idx"], timedelta(seconds=60))
    return [[row["text"]] for row in table.search(text, query_type="fts").limit(1).to_list()]


def llamaindex(server: Server) -> list[Call]:
    from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
    from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
    from llama_index.core.vector_stores.types import (
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
    )
    from llama_index.vector_stores.lancedb import LanceDBVectorStore

    name, is_remote = "llamaindex", type(server.connection).__name__ == "RemoteDBConnection"
    with tempfile.TemporaryDirectory() as folder:
        before = LanceDBVectorStore(folder, connection=server.connection)
    lancedb.db.LanceDBConnection.register(type(server.connection))
    store = LanceDBVectorStore(connection=server.connection, table_name=name, mode="create")

    def check_connection() -> None:
        assert before.client is server.connection, "it opened a folder"

    def node(number: int, text: str, kind: str) -> TextNode:
        made = TextNode(id_=str(number), text=text, metadata={"n": number, "s": kind}, embedding=[float(number), 1.0])
        made.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"doc{number % 2}")
        return made

    def query(
        count: int = 1, *filters: tuple[str, FilterOperator, Any], condition: Any = FilterCondition.AND, **options: Any
    ) -> list[Any]:
        where = MetadataFilters(
            filters=[MetadataFilter(key=key, operator=operator, value=value) for key, operator, value in filters],
            condition=condition,
        )
        text = options.pop("text", None)
        asked = VectorStoreQuery(
            query_embedding=[2.0, 1.0], query_str=text, similarity_top_k=count, filters=where if filters else None
        )
        return [[identity] for identity in store.query(asked, **options).ids or []]

    def then_rows(_: Any) -> list[Any]:
        return server.rows(name)

    def index() -> list[Any]:
        kept = LanceDBVectorStore(connection=server.connection, table_name="indexed", mode="create")
        options = {"embed_model": MockEmbedding(embed_dim=4)}
        documents = [Document(text="one", metadata={"n": 1}), Document(text="two", metadata={"n": 2})]
        context = StorageContext.from_defaults(vector_store=kept)
        VectorStoreIndex.from_documents(documents, storage_context=context, **options)
        again = VectorStoreIndex.from_vector_store(kept, **options)
        again.insert(Document(text="three", metadata={"n": 3}))
        return [[node.text] for node in again.as_retriever(similarity_top_k=3).retrieve("two")]

    is_ = FilterOperator
    local = (
        {
            "refusal": "not supported for LanceDB",
            "known": "it does this with the tables of a folder or a namespace alone",
        }
        if is_remote
        else {}
    )
    quoted = {
        "refusal": "No column" if is_remote else "No field named",
        "known": "it writes the id in double quotes, which is the name of a column: delete by the table",
    }
    return [
        Call(
            "hand over a connection, not registered",
            "LanceDBVectorStore(connection=db, …)",
            check_connection,
            refusal="it opened a folder",
            known=NO_ADDITION,
        ),
        Call(
            "create, and add nodes",
            "store.add(nodes)",
            lambda: then_rows(store.add([node(1, "old ship", "a"), node(2, "new ship", "b")])),
            [[2]],
        ),
        Call(
            "add nodes",
            "store.add(nodes)",
            lambda: then_rows(store.add([node(3, "red house", "c"), node(4, "blue house", "d")])),
            [[4]],
        ),
        Call("search", "store.query(VectorStoreQuery(query_embedding=…, similarity_top_k=1))", query, [["2"]]),
        Call(
            "with a filter: number",
            "MetadataFilter(key=…, operator=GT, value=2)",
            lambda: query(1, ("n", is_.GT, 2)),
            [["3"]],
        ),
        Call(
            "with a filter: text",
            "MetadataFilter(key=…, operator=EQ, value='a')",
            lambda: query(1, ("s", is_.EQ, "a")),
            [["1"]],
        ),
        Call(
            "with a filter: one of several",
            "MetadataFilter(key=…, operator=IN, value=[…])",
            lambda: query(2, ("s", is_.IN, ["c", "d"])),
            [["3"], ["4"]],
        ),
        Call(
            "with filters, all",
            "MetadataFilters(filters=[…])",
            lambda: query(2, ("n", is_.GT, 1), ("s", is_.EQ, "d")),
            [["4"]],
        ),
        Call(
            "with filters, any",
            "MetadataFilters(…, condition=OR)",
            lambda: query(2, ("n", is_.EQ, 1), ("s", is_.EQ, "d"), condition=FilterCondition.OR),
            [["1"], ["4"]],
        ),
        Call(
            "with a filter: text with an apostrophe",
            'MetadataFilter(key=…, value="c\'d")',
            lambda: query(1, ("s", is_.EQ, "c'd")),
            refusal="nterminated",
            known="it does not double the apostrophe",
        ),
        Call(
            "with a filter: none of several",
            "MetadataFilter(key=…, operator=NIN, value=[…])",
            lambda: query(1, ("s", is_.NIN, ["a"])),
            refusal="KeyError",
            known="it has no such operator",
        ),
        Call(
            "with a filter of SQL",
            'store.query(query, where="metadata.n > 2")',
            lambda: query(1, where="metadata.n > 2"),
            [["3"]],
        ),
        Call(
            "no rows",
            'store.query(query, where="metadata.n > 9")',
            lambda: query(1, where="metadata.n > 9"),
            refusal="query results are empty",
            known="it raises a Warning where nothing is found",
        ),
        Call(
            "full text",
            'store.query(query, query_type="fts")',
            lambda: query(2, text="house", query_type="fts"),
            None if is_remote else [["3"], ["4"]],
            **local,
        ),
        Call(
            "hybrid",
            'store.query(query, query_type="hybrid")',
            lambda: query(1, text="ship", query_type="hybrid"),
            None if is_remote else [["2"]],
            **local,
        ),
        Call(
            "nodes by a filter",
            "store.get_nodes(filters=…)",
            lambda: [
                [found.node_id]
                for found in store.get_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="n", value=2)]))
            ],
            None if is_remote else [["2"]],
            **local,
        ),
        Call(
            "an index of a column",
            'store.create_index(scalar=True, col_name="id")',
            lambda: store.create_index(scalar=True, col_name="id"),
        ),
        Call(
            "open it again",
            'LanceDBVectorStore(connection=db, table_name=…, mode="append")',
            lambda: [
                [LanceDBVectorStore(connection=server.connection, table_name=name, mode="append").table.count_rows()]
            ],
            [[4]],
        ),
        Call(
            "hand over a table",
            "LanceDBVectorStore(table=db.open_table(…)).add(nodes)",
            lambda: then_rows(
                LanceDBVectorStore(connection=server.connection, table=server.connection.open_table(name)).add(
                    [node(5, "green hill", "e")]
                )
            ),
            [[5]],
        ),
        Call("delete a document", 'store.delete("doc0")', lambda: store.delete("doc0"), **quoted),
        Call("delete nodes", 'store.delete_nodes(["1"])', lambda: store.delete_nodes(["1"]), **quoted),
        Call(
            "delete by the table",
            "store.table.delete(\"doc_id = 'doc0'\")",
            lambda: then_rows(store.table.delete("doc_id = 'doc0'")),
            [[3]],
        ),
        Call(
            "an index of documents, a retriever",
            "VectorStoreIndex.from_documents(…), .as_retriever(…).retrieve(text)",
            index,
            [["one"], ["two"], ["three"]],
        ),
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    make({"langchain": langchain, "llamaindex": llamaindex}[sys.argv[1]](server_of_command()))
