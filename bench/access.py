"""The cost of authentication and authorization: another server on the same catalog has both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import cycle, islice, repeat
from typing import Any

import numpy as np

from bench import data
from bench.data import NAMESPACE, SEED
from bench.environment import MANY_TABLES, TABLES, Environment, Placed
from bench.results import Result, at_most
from bench.rounds import Side
from bench.servers import Server, tiltyard
from bench.wire import of_table, post, request
from tiltyard.calls.http_caller import HttpCaller
from tiltyard.config import Settings
from tiltyard.identity.keys import NewKeyOptions, create_key
from tiltyard.store import open_store, wall_clock

READ = 2
"""The bit of the privilege."""
VISIBLE = 100
MASK = "concat({}, '!')"
"""What readers see of a name: of the same length as it is, nearly, so that answers are as large."""


def _guarded(environment: Environment, placed: Placed, name: str) -> Server:
    """A server with --auth on the catalog of one that runs without."""
    server = tiltyard(placed.root, environment.roots / f"{name}.log", environment.workers, further=["--auth"])
    environment.stack.callback(server.stop)
    return server


def _key(placed: Placed, name: str, *, administrator: bool = False, tables: int = 0, namespace: bool = False) -> str:
    """The key of a new principal, with `read` on the namespace, or on some of its tables, far apart."""
    with open_store(Settings(root=str(placed.root)).database_url) as store:
        key = create_key(store, wall_clock, name, NewKeyOptions(), administrator=administrator).text
        if namespace:
            store.grant(f"principal:{name}", "namespace", store.describe_namespace((NAMESPACE,)).id, READ, "bench")
        for number in np.random.default_rng(SEED).choice(MANY_TABLES, tables, replace=False):
            table = store.describe_table((NAMESPACE, f"t{number:06}")).id
            store.grant(f"principal:{name}", "table", table, READ, "bench")
    return key


def _with_key(requests: Iterable[bytes], key: str) -> Iterator[bytes]:
    """The same requests, which show a key."""
    header = f"\r\nx-api-key: {key}\r\n".encode()
    return (authenticated.replace(b"\r\n", header, 1) for authenticated in requests)


def guard(environment: Environment) -> list[Result]:
    """DescribeTable by a principal with a key and a grant, against the same without authentication."""
    placed = environment.catalog[0]
    key = _key(placed, "reader", namespace=True)
    plain, guarded = Side(placed.server), Side(_guarded(environment, placed, "guard"))
    open_requests = data.on_tables("describe", TABLES)
    authenticated = cycle(list(_with_key(islice(data.on_tables("describe", TABLES), TABLES), key)))
    for _ in range(environment.rounds):
        plain.take(lambda: open_requests, environment.load())
        guarded.take(lambda: authenticated, environment.load())
    sides = guarded.words(), f"open: {plain.words()}"
    what = "DescribeTable with a key and a grant against an open server: cost"
    return [at_most("guard", what, sides, plain.rate / guarded.rate, (1.15, "x"))]


def narrow(environment: Environment) -> list[Result]:
    """ListTables by one who sees 100 of 100,000 tables, against an administrator's page of 100."""
    placed = environment.many
    names = _key(placed, "narrow", tables=VISIBLE), _key(placed, "all", administrator=True)
    server = _guarded(environment, placed, "narrow")
    mine, theirs = Side(server), Side(server)
    listed = request("GET", f"/v1/namespace/{NAMESPACE}/table/list?limit={VISIBLE}")
    few, all_of_them = (next(_with_key(repeat(listed), key)) for key in names)
    for _ in range(environment.rounds):
        theirs.take(lambda: repeat(all_of_them), environment.load())
        mine.take(lambda: repeat(few), environment.load())
    sides = mine.words(), f"administrator: {theirs.words()}"
    what = f"ListTables of {VISIBLE} visible ones among 100,000 against an administrator's page: time"
    return [at_most("narrow", what, sides, theirs.rate / mine.rate, (2, "x"))]


def classified(environment: Environment) -> list[Result]:
    """A row by its id, for a principal with a key: where policies by classification bind nothing that it reads, against
    a catalog without any; and where one masks a column, against the same mask as a policy of the table.
    """
    placed = environment.vectors[0]
    administrator = _key(placed, "guardian", administrator=True)
    key = _key(placed, "analyst", namespace=True)
    server = _guarded(environment, placed, "classified")
    none, elsewhere, of_policy, by_classification = (Side(server) for _ in range(4))
    queries = [post(of_table(data.VECTORS, "query"), query) for query in data.equal_queries()]
    requests, load = list(_with_key(queries, key)), environment.load(8)
    table = data.VECTORS.split("$")
    name: dict[str, Any] = {"object_kind": "column", "column": "name", "key": "pii"}
    masking: dict[str, Any] = {"mask": "expression", "expression": MASK.format("value()")}
    masks = [{"column": "name", "mask": "expression", "expression": MASK.format("name")}]
    caller = HttpCaller(f"http://{server.address.host}:{server.address.port}", {"x-api-key": administrator})
    with closing(caller):
        for _ in range(environment.rounds):
            none.take(lambda: cycle(requests), load)
            caller.call("SetClassificationPolicy", name="names", key="pii", value="name", **masking)
            elsewhere.take(lambda: cycle(requests), load)
            caller.call("SetClassification", id=table, value="name", **name)
            by_classification.take(lambda: cycle(requests), load)
            caller.call("UnsetClassification", id=table, **name)
            caller.call("DropClassificationPolicy", name="names")
            caller.call("SetTablePolicy", id=table, name="names", masks=masks)
            of_policy.take(lambda: cycle(requests), load)
            caller.call("DropTablePolicy", id=table, name="names")
    what = "equality on a BTREE column, 100,000 rows, with a key"
    unbound = elsewhere.words(), f"no policy: {none.words()}"
    bound = by_classification.words(), f"the same mask by a policy of the table: {of_policy.words()}"
    return [
        at_most(
            "classified",
            f"{what}; a policy by classification of other columns: cost",
            unbound,
            none.rate / elsewhere.rate,
            (1.1, "x"),
        ),
        at_most(
            "classified",
            f"{what}; a mask by classification: cost",
            bound,
            of_policy.rate / by_classification.rate,
            (1.1, "x"),
        ),
    ]
