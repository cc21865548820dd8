"""What clients do to objects, and what they are told: rows, names, tags, versions, grants, keys, keyed inserts."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import httpx
import lance
import lance_namespace_urllib3_client as generated
import pyarrow as pa
from lance.namespace import RestNamespace
from lance_namespace_urllib3_client.api import TableApi
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError

from tests.faults.soak.staging_client import Staging
from tests.histories.history import DONE, REFUSED, Call, History
from tests.histories.publications import FAILED
from tests.services.secured import Secured
from tests.services.wire import stream

ROWS = 24
"""Different rows that are inserted into and deleted from one table."""
KEYED_ROWS = 60
"""Rows of one object that are inserted with keys: a set has numbers below 64."""
VERSIONS = 4
"""Versions that tags are set to."""
REFUSALS = (400, 403, 404, 409)
EFFECT_MS = 300
"""How long after the answer another server may go by the rights that were: it looks for changes each 50 ms."""
LIFE_SECONDS = 2
"""How long keys hold that expire."""


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a history: tables of a namespace, API keys, keyed inserts."""

    namespace: str
    history: History = field(default_factory=History)
    keys: deque[str] = field(default_factory=lambda: deque(maxlen=4), repr=False)
    numbers: Iterator[int] = field(default_factory=count)
    keyed: deque[int] = field(default_factory=lambda: deque([0], maxlen=3))
    """Rows that were inserted last, each with a key."""

    def make(self, http: httpx.Client) -> None:
        """Create what all clients begin with."""
        http.post(f"/v1/namespace/{self.namespace}/create", json={}).raise_for_status()
        for name in ("rows0", "rows1", "tagged", "granted", "swapped0", "swapped1", "keyed"):
            rows = stream(pa.schema([("n", pa.int64())]))
            http.post(f"/v1/table/{self.namespace}${name}/create", content=rows).raise_for_status()
        for _ in range(VERSIONS):
            rows = stream(pa.table({"n": [1]}))
            http.post(f"/v1/table/{self.namespace}$tagged/insert", content=rows).raise_for_status()


class Client:
    """A client of a server, by an administrator's key; another one has its right to a table by a grant."""

    def __init__(self, number: int, run: Secured, objects: Objects) -> None:
        key = run.keys["administrator"]
        self.number = number
        self.rest = RestNamespace(uri=run.url, **{"header.x-api-key": key})
        self._objects = objects
        self._http, self._granted, self._stranger = (run.http(name) for name in ("administrator", "ann", None))
        configuration = generated.Configuration(host=run.url, api_key={"ApiKeyAuth": key}, retries=False)
        self._tables = TableApi(generated.ApiClient(configuration))

    def keepers_of(self, name: str) -> tuple[str, ...]:
        """Return which servers keep a table, as this client's server knows."""
        response = self._http.post(f"/tiltyard/v1/table/{self._objects.namespace}${name}/servers", json={})
        return tuple(response.raise_for_status().json()["servers"])

    def close(self) -> None:
        """End its connections."""
        for http in (self._http, self._granted, self._stranger):
            http.close()

    def call_each(self, source: random.Random) -> Iterator[None]:
        """Call operations on objects of all kinds, in some order; yield after each."""
        rows = self._change_rows, self._read_rows, self._insert_keyed, self._read_keyed
        others = self._change_table, self._change_tag, self._change_grant, self._change_key, self._change_versions
        for call in source.sample(rows + others, len(rows + others)):
            yield call(source, source.randrange(2))

    def _change_rows(self, source: random.Random, number: int) -> None:
        """Insert or delete one row."""
        row, path = source.randrange(ROWS), self._path(f"rows{number}")
        if source.random() < 0.7:
            rows, call = _one_row(row), self._call(f"rows{number}", "add", row)
            self._record(call, lambda: self._http.post(f"{path}/insert", content=rows), _read_done)
        else:
            body, call = {"predicate": f"n = {row}"}, self._call(f"rows{number}", "remove", row)
            self._record(call, lambda: self._http.post(f"{path}/delete", json=body), _read_done)

    def _read_rows(self, source: random.Random, number: int) -> None:
        """Read all rows of a table."""

        def read(call: Call, response: httpx.Response) -> None:
            call.values = sorted(set(_values_of(response)))

        call = self._call(f"rows{number}", "read")
        self._record(call, lambda: self._query(f"rows{number}"), read)

    def _insert_keyed(self, source: random.Random, _: int) -> None:
        """Insert a row with an idempotency key: a new one, or one of the latest once more."""
        keyed = self._objects.keyed
        if source.random() < 0.5:
            keyed.append(next(self._objects.numbers))
        row = source.choice(tuple(keyed))
        headers = {"idempotency-key": f"{self._objects.namespace} {row}"}
        call = self._call(f"keyed{row // KEYED_ROWS}", "add", row % KEYED_ROWS)
        path, rows = f"{self._path('keyed')}/insert", _one_row(row)
        # A request that lasts longer than its lease may be overtaken by its repeat: then it is refused.
        self._record(call, lambda: self._http.post(path, content=rows, headers=headers), _read_outcome)

    def _read_keyed(self, source: random.Random, _: int) -> None:
        """Read the latest rows that were inserted with keys, as often as each is there."""
        part = max(0, self._objects.keyed[-1] // KEYED_ROWS - source.randrange(2))
        first = part * KEYED_ROWS

        def read(call: Call, response: httpx.Response) -> None:
            call.values = sorted(row - first for row in _values_of(response))

        call, among = self._call(f"keyed{part}", "list"), f"n >= {first} AND n < {first + KEYED_ROWS}"
        self._record(call, lambda: self._query("keyed", filter=among), read)

    def _change_table(self, source: random.Random, number: int) -> None:
        """Declare a table, drop it, or ask whether it exists."""
        action, operation = source.choice((("create", "declare"), ("drop", "drop"), ("has", "exists")))
        call, path = self._call(f"name{number}", action), f"{self._path(f'name{number}')}/{operation}"
        read = _read_has if action == "has" else _read_outcome
        self._record(call, lambda: self._http.post(path, json={}), read)

    def _change_tag(self, source: random.Random, number: int) -> None:
        """Create a tag, move it, delete it, or ask for its version."""
        tag, version = {"tag": f"t{number}"}, source.randrange(1, VERSIONS + 1)
        action, operation, body = source.choice(
            (
                ("create", "create", {**tag, "version": version}),
                ("move", "update", {**tag, "version": version}),
                ("drop", "delete", tag),
                ("get", "version", tag),
            )
        )
        call = self._call(f"tag{number}", action, version if action in ("create", "move") else 0, kind="register")
        path, read = f"{self._path('tagged')}/tags/{operation}", _read_version if action == "get" else _read_outcome
        self._record(call, lambda: self._http.post(path, json=body), read)

    def _change_versions(self, source: random.Random, number: int) -> None:
        """Commit a staged version of a table, or of two at once, or ask for the latest of one."""
        if source.random() < 0.3:
            call = replace(self._call("versions", "get", kind="versions"), value=number)
            path = f"{self._path(f'swapped{number}')}/version/describe"
            self._record(call, lambda: self._http.post(path, json={}), _read_latest)
            return
        tables = source.choice(((0,), (1,), (0, 1)))
        try:
            staged = {table: self._stage(f"swapped{table}") for table in tables}
        except FAILED:
            return  # its server was killed, say
        call = self._call("versions", "swap", kind="versions")
        call.values = [staged[table]["version"] if table in staged else 0 for table in range(2)]
        self._record(call, lambda: _ask(lambda: self._commit(staged)), _read_outcome)

    def _stage(self, name: str) -> dict[str, Any]:
        """Write the next version of a table without committing it; return what is to be committed."""
        staging, rows = Staging(self.rest), pa.table({"n": [self.number]})
        table = [self._objects.namespace, name]
        lance.write_dataset(rows, namespace_client=staging, table_id=table, mode="append")
        (staged,) = staging.staged
        return staged

    def _commit(self, staged: Mapping[int, Mapping[str, Any]]) -> None:
        """Commit staged versions by the generated client. Raises ApiException, urllib3's HTTPError."""
        if len(staged) > 1:
            entries = [generated.CreateTableVersionEntry.model_validate(entry) for entry in staged.values()]
            batch = generated.BatchCreateTableVersionsRequest(entries=entries)
            self._tables.batch_create_table_versions(batch, _request_timeout=60.0)
            return
        for table, entry in staged.items():
            request = generated.CreateTableVersionRequest.model_validate(entry)
            self._tables.create_table_version(
                f"{self._objects.namespace}$swapped{table}", request, _request_timeout=60.0
            )

    def _change_grant(self, source: random.Random, _: int) -> None:
        """Grant a right or revoke it, perhaps, and use it."""
        action, operation = source.choice((("add", "add"), ("remove", "revoke")))
        table = {"object_kind": "table", "id": [self._objects.namespace, "granted"]}
        body = {**table, "grantee": "ann", "privileges": ["read"]}
        if source.random() < 0.5:
            path = f"/tiltyard/v1/grant/{operation}"
            self._record(self._call("grant", action), lambda: self._http.post(path, json=body), _read_changed)
        used = f"{self._path('granted')}/count_rows"
        self._record(self._call("grant", "has"), lambda: self._granted.post(used, json={}), _read_has)

    def _change_key(self, source: random.Random, _: int) -> None:
        """Create an API key, which may be one that expires, or revoke one of the latest, perhaps; and use one."""
        if not self._objects.keys or source.random() < 0.2:
            self._create_key(source.choice((None, LIFE_SECONDS)))
        if not self._objects.keys:
            return  # its answer was lost
        key = source.choice(tuple(self._objects.keys))
        name, headers = _key_id(key), {"x-api-key": key}
        if source.random() < 0.1:
            call, body = self._call(f"key {name}", "remove"), {"key_id": name}
            self._record(call, lambda: self._http.post("/tiltyard/v1/key/revoke", json=body), _read_changed)
        call = self._call(f"key {name}", "has")
        self._record(call, lambda: self._stranger.get("/v1/namespace/$/list", headers=headers), _read_has)

    def _create_key(self, life: int | None) -> None:
        created: list[str] = []

        def read(call: Call, response: httpx.Response) -> None:
            _read_done(call, response)
            created.append(response.json()["api_key"])
            call.object = f"key {_key_id(created[0])}"

        call, body = self._call("", "add"), {"principal": "zoe", "expires_in_seconds": life}
        self._record(call, lambda: self._http.post("/tiltyard/v1/key/create", json=body), read)
        if created and life is not None:
            assert call.end is not None
            begin, end = call.begin + life * 10**9, call.end + life * 10**9
            self._objects.history.add(replace(call, action="remove", begin=begin, end=end))
        self._objects.keys.extend(created)

    def _query(self, name: str, **fields: Any) -> httpx.Response:
        body = {"k": 100_000, "vector": {}, "columns": {"column_names": ["n"]}, **fields}
        return self._http.post(f"{self._path(name)}/query", json=body)

    def _path(self, name: str) -> str:
        return f"/v1/table/{self._objects.namespace}${name}"

    def _call(self, name: str, action: str, value: int = 0, kind: str = "set") -> Call:
        return Call(name, kind, self.number, action, value)

    def _record(
        self, call: Call, ask: Callable[[], httpx.Response], read: Callable[[Call, httpx.Response], None]
    ) -> None:
        self._objects.history.record(call, ask, read)


def _ask(ask: Callable[[], None]) -> httpx.Response:
    """Return what the generated client was told. Raises httpx's TransportError, as httpx itself does."""
    try:
        ask()
    except generated.ApiException as error:
        return httpx.Response(error.status or 500, text=str(error.body))
    except HTTPError as error:
        cause = error.reason if isinstance(error, MaxRetryError) else error
        raise (httpx.ConnectError if isinstance(cause, NewConnectionError) else httpx.ReadError)(str(error)) from error
    return httpx.Response(200)


def _one_row(row: int) -> bytes:
    return stream(pa.table({"n": pa.array([row], pa.int64())}))


def _values_of(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    values: list[int] = pa.ipc.open_file(response.content).read_all()["n"].to_pylist()
    return values


def _key_id(key: str) -> str:
    return key.split("_")[1]


def _read_done(call: Call, response: httpx.Response) -> None:
    assert response.status_code == 200, response.text
    call.result = DONE


def _read_changed(call: Call, response: httpx.Response) -> None:
    assert response.status_code in (200, *REFUSALS), response.text
    call.result = DONE


def _read_outcome(call: Call, response: httpx.Response) -> None:
    assert response.status_code in (200, *REFUSALS), response.text
    call.result = DONE if response.status_code == 200 else REFUSED


def _read_has(call: Call, response: httpx.Response) -> None:
    assert response.status_code in (200, 401, *REFUSALS), response.text
    call.result = "yes" if response.status_code == 200 else "no"


def _read_version(call: Call, response: httpx.Response) -> None:
    assert response.status_code in (200, 404), response.text
    call.value = response.json()["version"] if response.status_code == 200 else 0


def _read_latest(call: Call, response: httpx.Response) -> None:
    assert response.status_code == 200, response.text
    call.values = [response.json()["version"]["version"]]


def settle_rights(calls: Iterable[Call]) -> list[Call]:
    """Return the calls to judge: each client sees rights in an order of its own.

    Servers look for changes on their own, so that one may go by a right that the other one knows to be gone: a change
    of a grant, and the end of a key, have their effect up to EFFECT_MS after the answer, as is promised.
    """
    rights: dict[str, list[Call]] = {}
    settled = []
    for call in calls:
        (rights.setdefault(call.object, []) if call.object.startswith(("grant", "key ")) else settled).append(call)
    for name, found in rights.items():
        changes = [_settled(call) for call in found if call.action != "has"]
        for client in {call.client for call in found if call.action == "has"}:
            seen = [*changes, *(call for call in found if call.action == "has" and call.client == client)]
            settled += [replace(call, object=f"{name} seen by {client}") for call in seen]
    return settled


def _settled(call: Call) -> Call:
    is_late = call.end is not None and (call.action == "remove" or call.object.startswith("grant"))
    return replace(call, end=call.end + EFFECT_MS * 1_000_000) if is_late and call.end is not None else call
