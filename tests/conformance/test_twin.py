"""`tiltyard.Namespace`: the operations without a server, as a namespace for pylance and lancedb."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableNotFoundError, UnsupportedOperationError

import tiltyard
from tests.services.server import ServerProcess
from tests.services.wire import stream
from tiltyard.config import ConfigError
from tiltyard.store import open_store

ROWS = pa.table(
    {"id": pa.array([1, 2, 3], pa.int64()), "vector": pa.array([[1.0, 0.0]] * 3, pa.list_(pa.float32(), 2))}
)


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[tiltyard.Namespace]:
    """A catalog of its own, without any server."""
    with tiltyard.Namespace(str(tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize("name", ["tiltyard", "tiltyard.Namespace", "tiltyard.namespace.Namespace"])
def test_connect_by_name_or_class_path(tmp_path: Path, name: str) -> None:
    namespace: Any = lance_namespace.connect(name, {"root": str(tmp_path), "jobs": "0"})
    namespace.create_namespace(lance_namespace.CreateNamespaceRequest(id=["n"]))
    assert namespace.list_namespaces(lance_namespace.ListNamespacesRequest(id=[])).namespaces == ["n"]
    namespace.close()


def test_pylance_writes_and_reads_managed_tables(namespace: Any) -> None:
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"])
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"], mode="append")
    dataset = lance.dataset(namespace_client=namespace, table_id=["t"])
    dataset.delete("id = 1")
    assert lance.dataset(namespace_client=namespace, table_id=["t"]).count_rows() == 4
    assert namespace.count_table_rows(lance_namespace.CountTableRowsRequest(id=["t"])).count == 4
    described = namespace.describe_table(lance_namespace.DescribeTableRequest(id=["t"]))
    assert described.managed_versioning and lance.dataset(described.location).version == 3


def test_lancedb_takes_it_as_its_namespace(tmp_path: Path) -> None:
    db = lancedb.connect_namespace("tiltyard", {"root": str(tmp_path)})
    table = db.create_table("t", ROWS)
    table.add(ROWS)
    assert db.open_table("t").search([1.0, 0.0]).limit(6).to_arrow().num_rows == 6


def test_lancedb_makes_branches_and_has_its_queries_run_by_it(tmp_path: Path) -> None:
    pushed = {"namespace_client_pushdown_operations": ["QueryTable"]}
    table = lancedb.connect_namespace("tiltyard", {"root": str(tmp_path)}, **pushed).create_table("t", ROWS)
    table.branches.create("try")
    branch = table.branches.checkout("try")
    branch.add(ROWS)
    assert (branch.count_rows(), table.count_rows()) == (6, 3)
    assert table.search([1.0, 0.0]).limit(2).to_arrow().num_rows == 2
    assert table.search().where("id > 2").to_arrow()["id"].to_pylist() == [3]


IMPORTS = (
    "import tiltyard, lance_namespace",
    "import lance_namespace, tiltyard",
    "import tiltyard, lancedb",
    "import tiltyard, importlib.util; importlib.util.find_spec('lance_namespace')",
)
CLOSES_NOTHING = """
import os, sys
import lance_namespace_urllib3_client, pandas, pyarrow.dataset  # most of what all of them import, once

root, *ways = sys.argv[1:]
for number, imports in enumerate(ways):
    if not os.fork():
        break
else:
    sys.exit(any(os.wait()[1] for _ in ways))

assert "lance_namespace" not in sys.modules
exec(imports)
import lance_namespace, lance, pyarrow
namespace = lance_namespace.connect("tiltyard", {"root": f"{root}/{number}", "jobs": "0"})
lance.write_dataset(pyarrow.table({"a": [1]}), namespace_client=namespace, table_id=["t"])
namespace.query_table({"id": ["t"], "k": 1, "vector": {}}).data
"""


def test_namespace_is_found_by_its_short_name_and_leaves_nothing_half_noted(tmp_path: Path) -> None:
    """As scripts do that close nothing, whichever they import first."""
    command = [sys.executable, "-c", CLOSES_NOTHING, str(tmp_path), *IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    for number, imports in enumerate(IMPORTS):
        with open_store(f"sqlite:///{tmp_path}/{number}/catalog.db") as store:
            assert [record.version for record in store.list_versions(store.describe_table(("t",)).id)] == [1], imports
            assert store.pending_versions() == [], imports


def test_namespace_that_is_collected_while_its_versions_are_marked_blocks_nobody(tmp_path: Path) -> None:
    """Python collects cycles in any thread, so also in the one that marks versions, and holds locks for that."""
    namespaces: list[Any] = [tiltyard.Namespace(str(tmp_path), jobs=0)]
    lance.write_dataset(ROWS, namespace_client=namespaces[0], table_id=["t"])
    reference, log = weakref.ref(namespaces[0]), namespaces[0]._services.commit_log
    settle = log._settle

    def settle_and_collect(names: Any) -> None:
        namespaces.clear()
        gc.collect()
        settle(names)

    log._settle = settle_and_collect
    marking = threading.Thread(target=log.flush, daemon=True)
    marking.start()
    marking.join(60)
    assert not marking.is_alive() and reference() is None
    with open_store(f"sqlite:///{tmp_path}/catalog.db") as store:
        assert store.pending_versions() == []


def test_queued_work_runs_in_this_process(namespace: Any) -> None:
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"])
    request = lance_namespace.CreateTableIndexRequest(id=["t"], column="id", index_type="BTREE")
    created = namespace.create_table_scalar_index(request)
    description_request = lance_namespace.DescribeTransactionRequest(id=[created.transaction_id])
    until = time.monotonic() + 90
    while namespace.describe_transaction(description_request).status != "Succeeded":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert len(lance.dataset(namespace_client=namespace, table_id=["t"]).describe_indices()) == 1


def test_errors_are_those_of_the_specification(namespace: Any) -> None:
    with pytest.raises(TableNotFoundError):
        namespace.describe_table({"id": ["none"]})
    with pytest.raises(InvalidInputError):
        namespace.create_namespace({"id": ["n"], "mode": "Perhaps"})
    with pytest.raises(InvalidInputError):
        namespace.create_table({"id": ["t"]}, b"no arrow")
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"])
    namespace.call("PrewarmTablePageCache", {"id": ["t"]})
    namespace.delete_from_table({"id": ["t"], "predicate": "true"})
    with pytest.raises(UnsupportedOperationError, match="no rows"):
        namespace.call("PrewarmTablePageCache", {"id": ["t"]})


def test_call_of_no_operation_and_bodies_that_are_no_bytes(namespace: Any) -> None:
    with pytest.raises(UnsupportedOperationError, match="MakeCoffee"):
        namespace.call("MakeCoffee", {})
    for kind in (bytes, bytearray, memoryview):
        namespace.create_table({"id": [kind.__name__]}, kind(stream(ROWS)))
        assert namespace.count_table_rows({"id": [kind.__name__]}).count == ROWS.num_rows
    with pytest.raises(InvalidInputError, match="as bytes"):
        namespace.create_table({"id": ["text"]}, "rows")


def test_database_of_another_kind_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sqlite:/// or postgresql://"):
        tiltyard.Namespace(str(tmp_path), "mysql://there")


def test_pickled_it_opens_the_same_catalog(namespace: Any) -> None:
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"])
    with pickle.loads(pickle.dumps(namespace)) as unpickled:
        assert unpickled.list_tables({"id": []}).tables == ["t"]


def test_next_to_a_running_server_each_sees_the_others_commits(
    tmp_path: Path, until_stopped: Callable[[Any], Any]
) -> None:
    server = until_stopped(ServerProcess(tmp_path))
    remote = lancedb.connect("db://x", api_key="none", host_override=server.url)
    table = remote.create_table("t", ROWS)
    with tiltyard.Namespace(str(tmp_path), jobs=0) as namespace:
        lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"], mode="append")
        assert table.count_rows() == 6
        table.delete("id = 1")
        assert lance.dataset(namespace_client=namespace, table_id=["t"]).count_rows() == 4


def test_import_of_the_package_is_cheap() -> None:
    """`tiltyard --help` must not wait for upstream's models."""
    program = "import sys, tiltyard; sys.exit('lance_namespace' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.fixture
def until_stopped() -> Iterator[Callable[[ServerProcess], ServerProcess]]:
    """Stops a server at the end."""
    servers: list[ServerProcess] = []

    def keep(server: ServerProcess) -> ServerProcess:
        servers.append(server)
        return server

    yield keep
    for server in servers:
        server.stop()
