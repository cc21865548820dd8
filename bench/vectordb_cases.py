"""Run cases of VectorDBBench by its own runners and clients, in a process that has its packages.

python bench/vectordb_cases.py < ORDER

The order, on standard input, is a JSON object: `side` ("tiltyard", "chroma" or "pgvector"), `address` (fields of that
side's connection), `data` (what `bench.yardstick` wrote) and `case` (its name, and how it is run). The last line of
standard output is what the case measured, as JSON. The other lines are VectorDBBench's own log.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import lancedb
from vectordb_bench.backend.cases import (
    CaseType,
    PerformanceCustomDataset,
    StreamingCustomDataset,
)
from vectordb_bench.backend.clients import DB
from vectordb_bench.backend.clients.api import IndexType
from vectordb_bench.backend.clients.chroma.config import ChromaConfig, ChromaIndexConfig
from vectordb_bench.backend.clients.lancedb.config import LanceDBAutoIndexConfig, LanceDBConfig
from vectordb_bench.backend.clients.lancedb.lancedb import LanceDB
from vectordb_bench.backend.clients.pgvector.config import PgVectorConfig, PgVectorHNSWConfig
from vectordb_bench.backend.data_source import DatasetSource
from vectordb_bench.backend.filter import NewIntFilter
from vectordb_bench.backend.task_runner import CaseRunner, RunningStatus
from vectordb_bench.models import CaseConfig, ConcurrencySearchConfig, TaskConfig

ADDRESS = "TILTYARD_YARDSTICK_URL"
"""Where lancedb's client connects to, for all processes that VectorDBBench starts."""
INDEX_SECONDS = 1_800.0
HNSW_LINKS, HNSW_CONSTRUCTION = 16, 200

if ADDRESS in os.environ:
    lancedb.connect = partial(lancedb.connect, api_key="any", host_override=os.environ[ADDRESS])


class LanceDBServer(LanceDB):
    """VectorDBBench's client of LanceDB, which waits until a server has built the index: a local one has by then."""

    def optimize(self, data_size: int | None = None) -> None:
        """Build the index, and search until the server answers from memory, as the client of a warm database does."""
        self.table.create_index(**self.case_config.index_param(), wait_timeout=timedelta(seconds=INDEX_SECONDS))
        query = [0.0] * self.dim
        until = time.monotonic() + INDEX_SECONDS
        while "index_in_memory" not in self.table.search(query).limit(1).select(["id"]).explain_plan():
            if time.monotonic() > until:
                raise TimeoutError("The index in memory is not built.")
            self.table.search(query).limit(1).select(["id"]).to_list()
            time.sleep(0.5)


class IntFilterCase(PerformanceCustomDataset):
    """Search the rows whose id is at least a share of all."""

    rate: float = 0.0
    """The share that is left out. Its base class hands on no field of a subclass: it is set after it was made."""

    @property
    def filters(self) -> NewIntFilter:
        """Return the filter; its true neighbours are in the file that VectorDBBench names by its share."""
        return NewIntFilter(filter_rate=self.rate, int_value=int(self.dataset.data.size * self.rate))


class Runner(CaseRunner):
    """A case's runner, with the client that waits for a server."""

    def init_db(self, drop_old: bool = True) -> None:
        """Open the client."""
        if self.config.db is not DB.LanceDB:
            super().init_db(drop_old)
            return
        self.db = LanceDBServer(
            dim=self.ca.dataset.data.dim,
            db_config=self.config.db_config.to_dict(),
            db_case_config=self.config.db_case_config,
            drop_old=drop_old,
            with_scalar_labels=self.ca.with_scalar_labels,
        )


def configure(side: str, address: dict[str, Any], effort: int) -> tuple[DB, Any, Any]:
    """Return the database, its connection and its index; `effort` is HNSW's `ef` where the side searches by one."""
    match side:
        case "tiltyard":
            return DB.LanceDB, LanceDBConfig(uri="db://yardstick"), LanceDBAutoIndexConfig(index=IndexType.AUTOINDEX)
        case "chroma":
            index = ChromaIndexConfig(m=HNSW_LINKS, ef_construct=HNSW_CONSTRUCTION, ef_search=effort)
            return DB.Chroma, ChromaConfig(**address), index
        case _:
            hnsw = PgVectorHNSWConfig(
                m=HNSW_LINKS, ef_construction=HNSW_CONSTRUCTION, ef_search=effort, maintenance_work_mem="1GB"
            )
            return DB.PgVector, PgVectorConfig(**address), hnsw


def make_case(data: dict[str, Any], asked: dict[str, Any]) -> tuple[CaseType, Any]:
    """Return a case of VectorDBBench over the data."""
    common = {"description": "", "dataset_config": data}
    timeouts = {"load_timeout": 7_200, "optimize_timeout": 7_200}
    match asked["name"]:
        case "search":
            case = PerformanceCustomDataset(name="search", use_filter=False, **common, **timeouts)
            return CaseType.PerformanceCustomDataset, case
        case "label":
            share = asked["share"]
            case = PerformanceCustomDataset(name="label", use_filter=True, label_percentage=share, **common, **timeouts)
            return CaseType.PerformanceCustomDataset, case
        case "int":
            case = IntFilterCase(name="int", use_filter=False, **common, **timeouts)
            case.rate = asked["rate"]
            return CaseType.PerformanceCustomDataset, case
        case "stream":
            case = StreamingCustomDataset(
                insert_rate=asked["rate"],
                search_stages=asked["stages"],
                concurrencies=asked["callers"],
                read_dur_after_write=asked["seconds"],
                **common,
            )
            return CaseType.StreamingCustomDataset, case
        case name:
            raise ValueError(f"There is no case {name!r}.")


def insert_for(runner: CaseRunner, seconds: float) -> dict[str, float]:
    """Insert the data over and over for some seconds, as VectorDBBench's capacity case does; return what was taken.

    Its own case ends after a day, or when the server refuses; with a time of its own it returns no number.
    """
    runner._pre_run(drop_old=True)
    data = runner.ca.dataset.data
    began, taken = time.perf_counter(), 0
    with runner.db.init():
        for turn in count():
            for batch in runner.ca.dataset.iter_batches(runner.config.insert_batch_size):
                embeddings, ids = batch[data.train_vector_field].tolist(), batch[data.train_id_field] + turn * data.size
                inserted, error = runner.db.insert_embeddings(embeddings, ids.tolist())
                if error is not None:
                    raise error
                taken += inserted
                if time.perf_counter() >= began + seconds:
                    return {"max_load_count": taken, "insert_duration": time.perf_counter() - began}
    raise AssertionError("not reached")


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run the case of an order; return its measurements."""
    asked = order["case"]
    database, connection, index = configure(order["side"], order["address"], order["effort"])
    case_type, case = make_case(
        order["data"], {**asked, "name": "search" if asked["name"] == "capacity" else asked["name"]}
    )
    index.metric_type = case.dataset.data.metric_type
    searching = ConcurrencySearchConfig(
        num_concurrency=asked.get("callers", [1]), concurrency_duration=asked.get("seconds", 1)
    )
    config = TaskConfig(
        db=database,
        db_config=connection,
        db_case_config=index,
        case_config=CaseConfig(case_id=case_type, k=order["k"], concurrency_search_config=searching),
        load_concurrency=1,
        insert_batch_size=order["batch"],
    )
    if not database.init_cls.filter_supported(case.filters):
        return {"refused": "VectorDBBench's client of it has no such filter"}
    runner = Runner(
        run_id="yardstick", config=config, ca=case, status=RunningStatus.PENDING, dataset_source=DatasetSource.S3
    )
    if asked["name"] == "capacity":
        return insert_for(runner, asked["seconds"])
    return asdict(runner.run(drop_old=True))


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))), flush=True)
