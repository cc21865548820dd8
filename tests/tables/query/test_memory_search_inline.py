"""Searches of vectors in memory that run on the event loop: which qualify, and their responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from tests.tables.query.query_table import vectors
from tests.tables.served import Server, ask

from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.model.operations import bound_operations
from tiltyard.model.principals import Principal, Privilege
from tiltyard.model.spec import models
from tiltyard.storage.vector_cache.cache import VectorCache
from tiltyard.storage.vector_cache.searched_column import SEARCHES
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.query.query import query_table
from tiltyard.tables.query.routes.chooser import query_on_loop
from tiltyard.tables.query.routes.index_in_memory import search_together, waiting_search

PLACES = np.random.default_rng(5).normal(size=(600, 8)).astype(np.float32)
ROWS = pa.table({"id": range(600), "vec": vectors(PLACES, pa.float32())})


def query(**fields: Any) -> models.QueryTableRequest:
    near = {"id": "t", "vector": {"single_vector": PLACES[3].tolist()}, "k": 5}
    request: models.QueryTableRequest = ask(
        models.QueryTableRequest, **near | {"columns": {"column_names": ["id"]}} | fields
    )
    return request


def warm(server: Server) -> None:
    """Create a table, and search until its vectors and ids are in memory."""
    server.create("t", ROWS).create_index("vec", "IVF_FLAT", metric="l2", num_partitions=1)
    datasets = server.ctx.storage.datasets
    datasets.vector_cache = VectorCache(1 << 26, processors=3)
    for _ in range(6):
        query_table(server.ctx, query())
        datasets.vector_cache.wait()
        datasets.column_cache._threads.submit(int).result()


def test_searches_all_in_memory_run_inline(server: Server) -> None:
    datasets = server.ctx.storage.datasets
    assert query_on_loop(server.ctx, query(id="nowhere")) is None
    warm(server)
    ctx = query_on_loop(server.ctx, query())
    assert ctx is not None
    before = datasets.vector_cache.hits
    response = query_table(ctx, query())
    inline = pa.Table.from_batches(response.batches, response.schema)
    assert datasets.vector_cache.hits == before + 1
    assert inline["id"][0].as_py() == 3
    for fields in ({"filter": "id % 5 = 1"}, {"k": 500}, {"version": 1}, {"bypass_vector_index": True}):
        assert query_on_loop(server.ctx, query(**fields)) is None
    assert query_on_loop(server.ctx, query(vector={"single_vector": [1.0]})) is None  # refused in a thread
    server.open("t").delete("id = 3")
    assert query_on_loop(server.ctx, query()) is None  # the new version was not read yet
    response = query_table(server.ctx, query())
    assert 3 not in pa.Table.from_batches(response.batches, response.schema)["id"].to_pylist()
    datasets.vector_cache.close()


def test_filtered_searches_run_inline_once_the_values_of_their_columns_are_in_memory(server: Server) -> None:
    """So do those whose rows Lance has found in this version; a pinned version and a branch have their own rows."""
    warm(server)
    vector_cache = server.ctx.storage.datasets.vector_cache
    for number in range(SEARCHES):
        assert query_on_loop(server.ctx, query(filter=f"id > {number}")) is None
        assert found(server.ctx, filter=f"id > {number} AND id < 9", k=100) == set(range(number + 1, 9))
    vector_cache.wait()
    for filter_, expected in (("id < 3 OR NOT id < 598", {0, 1, 2, 598, 599}), ("id > 600", set())):
        ctx = query_on_loop(server.ctx, query(filter=filter_))
        assert ctx is not None
        assert found(ctx, filter=filter_) == expected
    for of_lance in ("id % 300 = 1", "id + 0 < 4"):
        assert query_on_loop(server.ctx, query(filter=of_lance)) is None
        rows = found(server.ctx, filter=of_lance)
        ctx = query_on_loop(server.ctx, query(filter=of_lance))
        assert ctx is not None
        assert found(ctx, filter=of_lance) == rows == ({1, 301} if "%" in of_lance else {0, 1, 2, 3})
    dataset = server.open("t")
    pinned = dataset.version
    dataset.create_branch("other")
    dataset.delete("id = 2")
    assert found(server.ctx, filter="id < 4") == {0, 1, 3}
    assert found(server.ctx, filter="id < 4", version=pinned) == {0, 1, 2, 3}
    assert found(server.ctx, filter="id < 4", branch="other") == {0, 1, 2, 3}
    assert query_on_loop(server.ctx, query(filter="id < 4", version=pinned)) is None
    vector_cache.close()


def found(ctx: Context, **fields: Any) -> set[int]:
    response = query_table(ctx, query(**fields))
    return set(pa.Table.from_batches(response.batches, response.schema)["id"].to_pylist())


def test_searches_that_wait_are_done_together_each_with_its_own_rows(server: Server) -> None:
    """Also those that look for more rows, or more widely: they are no part of the same search."""
    warm(server)
    datasets = server.ctx.storage.datasets
    requests = [
        query(vector={"single_vector": PLACES[place].tolist()}, k=5 + place % 2, offset=place % 3)
        for place in range(0, 600, 40)
    ]
    requests.append(query(columns={"column_names": ["_distance", "id"]}, nprobes=7, with_row_id=True))
    for _ in range(SEARCHES):
        query_table(server.ctx, query(filter="id > 8"))
    datasets.vector_cache.wait()
    requests += [query(filter=filter_) for filter_ in ("id > 300", "id < 300", "id < 300")]
    contexts = [query_on_loop(server.ctx, request) for request in requests]
    calls = [call for ctx in contexts if ctx is not None and (call := waiting_search(ctx)) is not None]
    assert len(calls) == len(requests)
    before = datasets.vector_cache.hits
    search_together(calls)
    assert datasets.vector_cache.hits == before + len(calls)
    for ctx, request in zip(contexts, requests, strict=True):
        together = query_table(ctx, request)  # type: ignore[arg-type]
        alone = query_table(server.ctx, request)
        rows = pa.Table.from_batches(together.batches, together.schema)
        assert rows.equals(pa.Table.from_batches(alone.batches, alone.schema))
        assert rows.num_rows == request.k
    assert datasets.vector_cache.hits == before + 2 * len(calls)  # none was searched for twice
    datasets.vector_cache.close()


def test_a_search_is_not_used_for_a_table_that_has_its_name_now(server: Server) -> None:
    """What authorization finds counts: the rows of a search are those of the table that it was planned for."""
    warm(server)
    ctx = query_on_loop(server.ctx, query())
    assert ctx is not None
    call = waiting_search(ctx)
    assert call is not None
    search_together([call])
    server.create("new", pa.table({"id": [7], "vec": vectors(PLACES[:1], pa.float32())}))
    table = Id(("t",))
    resolved = ctx.with_resolved({table: server.services.store.describe_table(("new",))})
    answer = query_table(resolved, query())
    assert pa.Table.from_batches(answer.batches, answer.schema)["id"].to_pylist() == [7]
    server.ctx.storage.datasets.vector_cache.close()


def test_a_grantee_searches_once_too(server: Server) -> None:
    """Authorization looks the table up again: what was found before is used if the record is the same."""
    warm(server)
    record = server.services.store.describe_table(("t",))
    ann = replace(server.ctx, principal=Principal("ann", (), "test"))
    server.services.store.grant("principal:ann", TABLE, record.id, Privilege.READ.value, "test")
    datasets = server.ctx.storage.datasets
    (_, handler) = bound_operations()["QueryTable"]
    assert handler is not None
    before = datasets.vector_cache.hits
    authorized = handler.authorize(query_on_loop(ann, query()), query())
    call = waiting_search(authorized)
    assert call is not None
    search_together([call])
    answer = query_table(authorized, query())
    assert pa.Table.from_batches(answer.batches, answer.schema)["id"][0].as_py() == 3
    assert datasets.vector_cache.hits == before + 1
    datasets.vector_cache.close()
