"""Searches of vectors in memory that run on the event loop: which qualify, and their responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from tests.tables.query.query_table import vectors
from tests.tables.served import Server, ask

from tiltyard.model.spec import models
from tiltyard.storage.vector_cache.cache import VectorCache
from tiltyard.tables.query.memory_search import query_inline
from tiltyard.tables.query.query import query_table

PLACES = np.random.default_rng(5).normal(size=(600, 8)).astype(np.float32)
ROWS = pa.table({"id": range(600), "vec": vectors(PLACES, pa.float32())})


def query(**fields: Any) -> models.QueryTableRequest:
    near = {"id": "t", "vector": {"single_vector": PLACES[3].tolist()}, "k": 5}
    request: models.QueryTableRequest = ask(
        models.QueryTableRequest, **near | {"columns": {"column_names": ["id"]}} | fields
    )
    return request


def test_searches_all_in_memory_run_inline(server: Server) -> None:
    server.create("t", ROWS).create_index("vec", "IVF_FLAT", metric="l2", num_partitions=1)
    datasets = server.ctx.storage.datasets
    assert query_inline(server.ctx, query()) is None
    datasets.vector_cache = VectorCache(1 << 26)
    for _ in range(6):
        query_table(server.ctx, query())
        datasets.vector_cache.wait()
        datasets.column_cache._threads.submit(int).result()
    ctx = query_inline(server.ctx, query())
    assert ctx is not None
    before = datasets.vector_cache.searches
    response = query_table(ctx, query())
    inline = pa.Table.from_batches(response.batches, response.schema)
    assert datasets.vector_cache.searches == before + 1
    assert inline["id"][0].as_py() == 3
    for fields in ({"filter": "id > 5"}, {"k": 500}, {"version": 1}, {"bypass_vector_index": True}):
        assert query_inline(server.ctx, query(**fields)) is None
    assert query_inline(server.ctx, query(vector={"single_vector": [1.0]})) is None  # refused in a thread
    server.open("t").delete("id = 3")
    assert query_inline(server.ctx, query()) is None  # the new version was not read yet
    response = query_table(server.ctx, query())
    assert 3 not in pa.Table.from_batches(response.batches, response.schema)["id"].to_pylist()
    datasets.vector_cache.close()
