"""What clients do in an endurance run: small writes and reads over many tables, by every way into the server."""

from __future__ import annotations

import json
import random
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import adbc_driver_flightsql.dbapi as adbc
import httpx
import lance
import lance.namespace
import lance_namespace_urllib3_client as generated
import lance_namespace_urllib3_client.api as apis
import lancedb
import numpy as np
import pyarrow as pa
from adbc_driver_flightsql import DatabaseOptions
from lancedb.remote import ClientConfig, TlsConfig

import tiltyard
from tests.services.wire import stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.lake import Lake

KEYS = 400
"""Keys of a table: rows of the same key replace each other, or are deleted, so that tables stay small."""
DIMENSIONS = 16
CALL_SECONDS = 60
INDEX_SECONDS = 600
REFUSED = re.compile(r"[Cc]onflict|concurrent|Incompatible transaction|preempted|[Tt]oo many requests")
"""What writers of one table may be told: somebody else was first."""
CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
PAGES_OF_TABLES = ("table", "rows", "versions", "indexes", "lineage", "search", "map", "manage")
PAGES = ("", "jobs", "jobs/schedules", "server", "server/storage", "access", "audit", "dropped", "sql")


@dataclass(frozen=True, slots=True)
class Target:
    """How a server is reached: its URL, a key, the file of its authority, the port of SQL, and the tables."""

    url: str
    key: str
    authority: str
    sql_port: int
    tables: tuple[str, ...]

    @property
    def headers(self) -> dict[str, str]:
        """The header that authenticates."""
        return {"x-api-key": self.key}

    @property
    def properties(self) -> dict[str, str]:
        """The properties of Lance's namespace clients."""
        return {"header.x-api-key": self.key, "tls.ssl_ca_cert": self.authority}

    def http(self) -> httpx.Client:
        """Return a client that trusts the server."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=CALL_SECONDS)

    def lancedb(self) -> Any:
        """Return lancedb's client."""
        config = ClientConfig(tls_config=TlsConfig(ssl_ca_cert=self.authority))
        return lancedb.connect("db://endurance", api_key=self.key, host_override=self.url, client_config=config)

    def lake(self) -> Lake:
        """Return the lake of `tiltyard.connect`."""
        return tiltyard.connect(self.url, properties=self.properties)


def make_rows(chance: random.Random, number: int) -> pa.Table:
    """Return rows with keys, a vector each."""
    vectors = np.random.default_rng(chance.randrange(1 << 30)).normal(size=number * DIMENSIONS).astype(np.float32)
    keys = [f"k{chance.randrange(KEYS):03}" for _ in range(number)]
    return pa.table(
        {
            "id": pa.array([chance.randrange(1 << 40) for _ in keys], pa.int64()),
            "key": keys,
            "text": [f"a text about {key} and {chance.random()}" for key in keys],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSIONS),
        }
    )


class Client:
    """Does one of its `actions` after the other, chosen at random with the same seed in each run."""

    pause = 0.2
    """Seconds between two actions."""

    def __init__(self, target: Target, seed: str) -> None:
        self.target = target
        self.chance = random.Random(f"{type(self).__name__} {seed}")
        self.actions: Sequence[Callable[[], None]] = ()

    def table(self) -> str:
        """Choose a table."""
        return self.chance.choice(self.target.tables)

    def some_keys(self) -> str:
        """Return a condition that a twentieth of the keys fulfil."""
        first = self.chance.randrange(KEYS - KEYS // 20)
        return f"key >= 'k{first:03}' AND key < 'k{first + KEYS // 20:03}'"

    def vector(self) -> list[float]:
        """Return a vector to search by."""
        return [self.chance.gauss(0, 1) for _ in range(DIMENSIONS)]


class LancedbClient(Client):
    """lancedb: rows, searches, tags, tables that come and go."""

    def __init__(self, target: Target, seed: str) -> None:
        super().__init__(target, seed)
        self._database = target.lancedb()
        self._made = 0
        self.actions = (
            *(self.append, self.upsert, self.update, self.delete) * 2,
            *(self.search, self.filter, self.filtered_search) * 3,
            self.tag,
            self.make_and_drop,
        )

    def _open(self) -> Any:
        return self._database.open_table(self.table())

    def append(self) -> None:
        self._open().add(make_rows(self.chance, 4))

    def upsert(self) -> None:
        merge = self._open().merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(make_rows(self.chance, 4))

    def update(self) -> None:
        self._open().update(where=self.some_keys(), values={"text": "a new text"})

    def delete(self) -> None:
        self._open().delete(self.some_keys())

    def search(self) -> None:
        self._open().search(self.vector()).limit(5).to_arrow()

    def filter(self) -> None:
        self._open().search().where(self.some_keys()).limit(50).to_arrow()

    def filtered_search(self) -> None:
        self._open().search(self.vector()).where(self.some_keys(), prefilter=True).limit(5).to_arrow()

    def tag(self) -> None:
        table = self._open()
        name = f"tag-{self.chance.randrange(1 << 30)}"
        table.tags.create(name, table.version)
        table.tags.delete(name)

    def make_and_drop(self) -> None:
        self._made += 1
        name = f"passing-{id(self)}-{self._made}"
        self._database.create_table(name, make_rows(self.chance, 300)).search(self.vector()).limit(5).to_arrow()
        self._database.drop_table(name)


class GeneratedClient(Client):
    """The client made of the specification: rows, queries, lists, indexes, snapshots of what is there."""

    def __init__(self, target: Target, seed: str) -> None:
        super().__init__(target, seed)
        configuration = generated.Configuration(host=target.url, ssl_ca_cert=target.authority)
        api = generated.ApiClient(configuration)
        api.set_default_header("x-api-key", target.key)
        self._data, self._tables, self._indexes = apis.DataApi(api), apis.TableApi(api), apis.IndexApi(api)
        self._namespaces = apis.NamespaceApi(api)
        self.actions = (
            *(self.insert, self.query, self.count) * 3,
            *(self.describe, self.list_versions, self.list_tables),
            self.make_namespace,
        )

    def insert(self) -> None:
        self._data.insert_into_table(self.table(), stream(make_rows(self.chance, 4)), _request_timeout=CALL_SECONDS)

    def query(self) -> None:
        request = generated.QueryTableRequest(
            vector={"single_vector": self.vector()}, k=5, filter=self.some_keys(), columns={"column_names": ["key"]}
        )
        self._data.query_table(self.table(), request, _request_timeout=CALL_SECONDS)

    def count(self) -> None:
        request = generated.CountTableRowsRequest(predicate=self.some_keys())
        self._data.count_table_rows(self.table(), request, _request_timeout=CALL_SECONDS)

    def describe(self) -> None:
        self._tables.describe_table(self.table(), generated.DescribeTableRequest(), _request_timeout=CALL_SECONDS)

    def list_versions(self) -> None:
        self._tables.list_table_versions(self.table(), _request_timeout=CALL_SECONDS)

    def list_tables(self) -> None:
        self._tables.list_tables("$", _request_timeout=CALL_SECONDS)

    def make_namespace(self) -> None:
        name = f"passing-{self.chance.randrange(1 << 40)}"
        self._namespaces.create_namespace(name, generated.CreateNamespaceRequest(), _request_timeout=CALL_SECONDS)
        self._namespaces.drop_namespace(name, generated.DropNamespaceRequest(), _request_timeout=CALL_SECONDS)


class PylanceClient(Client):
    """pylance: reads and writes files by itself, commits through the server."""

    def __init__(self, target: Target, seed: str) -> None:
        super().__init__(target, seed)
        self._namespace = lance.namespace.RestNamespace(uri=target.url, **target.properties)
        self.actions = (self.insert, self.scan, self.checkout)

    def _open(self) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self._namespace, table_id=[self.table()])

    def insert(self) -> None:
        self._open().insert(make_rows(self.chance, 4))

    def scan(self) -> None:
        self._open().to_table(columns=["key"], filter=self.some_keys())

    def checkout(self) -> None:
        dataset = self._open()
        dataset.checkout_version(dataset.version).count_rows()


class SqlClient(Client):
    """SQL by Flight, with ADBC's driver: a connection for each few queries."""

    pause = 0.5

    def __init__(self, target: Target, seed: str) -> None:
        super().__init__(target, seed)
        self.actions = (self.aggregate, self.join, self.look_up)

    def _run(self, *queries: str) -> None:
        options = {
            "adbc.flight.sql.rpc.call_header.x-api-key": self.target.key,
            DatabaseOptions.TLS_ROOT_CERTS.value: Path(self.target.authority).read_text(),
        }
        address = f"grpc+tls://127.0.0.1:{self.target.sql_port}"
        with adbc.connect(address, db_kwargs=options, autocommit=True) as connection, connection.cursor() as cursor:
            for query in queries:
                cursor.execute(query)
                cursor.fetch_arrow_table()

    def aggregate(self) -> None:
        self._run(
            f'SELECT key, count(*) AS n, max(text) AS t FROM "{self.table()}" GROUP BY key ORDER BY n DESC LIMIT 9'
        )

    def join(self) -> None:
        self._run(f'SELECT count(*) AS n FROM "{self.table()}" a JOIN "{self.table()}" b ON a.key = b.key')

    def look_up(self) -> None:
        table = self.table()
        self._run(*(f"SELECT id, text FROM \"{table}\" WHERE key = 'k{number:03}'" for number in range(5)))


class ConsoleClient(Client):
    """A person who looks at pages of the console, and runs SQL there."""

    pause = 0.5

    def __init__(self, target: Target, seed: str) -> None:
        super().__init__(target, seed)
        self._http = httpx.Client(base_url=f"{target.url}/console", timeout=CALL_SECONDS, follow_redirects=True)
        self._sign_in()
        self.actions = (*(self.look,) * 10, self.run_sql, self._sign_in)

    def _csrf(self, page: str) -> str:
        token = CSRF.search(self._http.get(page).text)
        assert token is not None, page
        return token[1]

    def _sign_in(self) -> None:
        self._http.cookies.clear()
        form = {"csrf": self._csrf("/sign-in"), "key": self.target.key}
        self._http.post("/sign-in", data=form).raise_for_status()

    def look(self) -> None:
        pages = (*PAGES, *(f"{page}/{self.table()}" for page in PAGES_OF_TABLES))
        self._http.get(f"/{self.chance.choice(pages)}").raise_for_status()

    def run_sql(self) -> None:
        form = {"csrf": self._csrf("/sql"), "query": f'SELECT key, count(*) AS n FROM "{self.table()}" GROUP BY key'}
        self._http.post("/sql", data=form).raise_for_status()


class StreamClient(Client):
    """Files that arrive in folders, and streams that append them to tables or upsert them."""

    pause = 2.0

    def __init__(self, target: Target, seed: str) -> None:
        super().__init__(target, seed)
        self._lake = target.lake()
        self._arriving, self._arrived = Path(tempfile.mkdtemp(prefix="arriving-")), 0
        self.actions = (self.append, self.upsert, self.snapshot)

    def _stream(self, table: str, on: str | None) -> None:
        folder = self._arriving / table
        folder.mkdir(exist_ok=True)
        self._arrived += 1
        lines = (json.dumps({"key": f"k{number:03}", "text": f"file {self._arrived}"}) for number in range(20))
        file = folder / f"{self._arrived:06}.jsonl"
        (folder / ".next").write_text("\n".join(lines) + "\n")
        (folder / ".next").rename(file)
        self._lake.stream(folder, table, on=on, available_now=True)
        file.unlink()

    def append(self) -> None:
        self._stream("streamed", None)

    def upsert(self) -> None:
        self._stream("followed", "key")

    def snapshot(self) -> None:
        name = f"snapshot-{self.chance.randrange(1 << 30)}"
        self._lake.snapshot(name, self.chance.sample(self.target.tables, 2)).drop()


class JobClient(Client):
    """Index builds, which are jobs of the server; functions of a user; sizes of what streams made."""

    pause = 10.0

    def __init__(self, target: Target, seed: str) -> None:
        super().__init__(target, seed)
        self._database, self._lake = target.lancedb(), target.lake()
        self.actions = (self.build_index, self.shorten)

    def build_index(self) -> None:
        table = self._database.open_table(self.table())
        table.create_scalar_index("key", replace=True, wait_timeout=timedelta(seconds=INDEX_SECONDS))

    def shorten(self) -> None:
        for name in ("streamed", "followed"):
            if self._lake.table(name).exists():
                self._database.open_table(name).delete(self.some_keys())


CLIENTS: tuple[type[Client], ...] = (
    LancedbClient,
    LancedbClient,
    GeneratedClient,
    GeneratedClient,
    PylanceClient,
    SqlClient,
    ConsoleClient,
    StreamClient,
    JobClient,
)


class Load:
    """Runs all clients, each in a thread; counts what they did, by name, and what else failed than writers' races."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.failures: list[str] = []
        self._stopping = threading.Event()

    @contextmanager
    def running(self, target: Target, seed: int) -> Iterator[None]:
        """Run the clients for a while."""
        clients = [client(target, f"{seed} {number}") for number, client in enumerate(CLIENTS)]
        threads = [threading.Thread(target=self._run, args=(client,), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join(CALL_SECONDS)

    def _run(self, client: Client) -> None:
        while not self._stopping.is_set():
            action = client.chance.choice(client.actions)
            name = f"{type(client).__name__}.{action.__name__.strip('_')}"
            try:
                action()
            except Exception as error:  # noqa: BLE001  # whatever a client raises is told
                if REFUSED.search(str(error)):
                    self.refused[name] += 1
                else:
                    self.failures.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            else:
                self.done[name] += 1
            self._stopping.wait(client.pause * client.chance.uniform(0.5, 1.5))

    @property
    def counts(self) -> Mapping[str, str]:
        """What was done and refused, by name."""
        names = sorted(self.done | self.refused)
        return {name: f"{self.done[name]:,} done, {self.refused[name]:,} refused" for name in names}
