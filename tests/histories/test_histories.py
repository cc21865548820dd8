"""Several servers under kills and pauses: an order of all calls explains all answers, object by object."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from tests.faults.conftest import Installation, installation, postgres  # noqa: F401
from tests.histories.clients import VERSIONS, Client, settle_grants
from tests.histories.history import ILLEGAL, OK, Call, History, build_checker, is_installed, judge
from tests.services.secured import Secured, make_keys
from tests.services.server import ServerProcess
from tests.services.wire import stream

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not is_installed(), reason="go is not installed, in which porcupine is written"),
]
CLIENTS = 6
SECONDS = float(os.environ.get("HISTORY_SECONDS", "6"))


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checker(tmp_path_factory.mktemp("checker"))


def test_servers_that_are_killed_and_suspended_answer_as_one(installation: Installation, checker: Path) -> None:  # noqa: F811
    seed = random.SystemRandom().randrange(1 << 30)
    keys = make_keys(installation.db, "administrator", "ann")
    servers = [installation.start("--auth", TILTYARD_REPEAT_LEASE="2") for _ in range(2)]
    history, ended = History(), threading.Event()
    with httpx.Client(base_url=servers[0].url, headers={"x-api-key": keys["administrator"]}, timeout=60) as http:
        for name in ("rows0", "rows1", "tagged", "granted"):
            http.post(f"/v1/table/{name}/create", content=stream(pa.schema([("n", pa.int64())]))).raise_for_status()
        for _ in range(VERSIONS):
            http.post("/v1/table/tagged/insert", content=stream(pa.table({"n": [1]}))).raise_for_status()
    threads = [
        threading.Thread(target=_run_client, args=(number, Secured(servers[number % 2], keys), history, ended, seed))
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    _disturb(servers, random.Random(seed), time.monotonic() + SECONDS)
    ended.set()
    for thread in threads:
        thread.join(120)
    settle_grants(history)
    verdicts = judge(checker, history.calls)
    assert len(verdicts) == 7 and len(history.calls) > 50, (len(history.calls), history.unknown)
    # One with too many calls of unknown outcome may take longer than the checker has: that says nothing.
    assert ILLEGAL not in verdicts.values(), f"seed {seed}, {len(history.calls)} calls: {verdicts}"
    assert list(verdicts.values()).count(OK) >= 5, verdicts


def _run_client(number: int, run: Secured, history: History, ended: threading.Event, seed: int) -> None:
    source = random.Random(seed + number)
    with ExitStack() as stack:
        http, granted = (stack.enter_context(run.http(name)) for name in ("administrator", "ann"))
        client = Client(number, http, granted, history)
        while not ended.is_set():
            client.call_at_random(source)
            time.sleep(source.uniform(0, 0.02))


def _disturb(servers: list[ServerProcess], source: random.Random, until: float) -> None:
    """Kill a server and start it again, or suspend it for longer than its leases, until the time is over."""
    while time.monotonic() < until:
        time.sleep(source.uniform(0.3, 1.0))
        server = source.choice(servers)
        if source.random() < 0.5:
            server.kill()
            server.start()
        else:
            os.kill(server.process.pid, signal.SIGSTOP)
            time.sleep(source.uniform(0.1, 2.5))
            os.kill(server.process.pid, signal.SIGCONT)


def test_wrong_histories_are_found(checker: Path) -> None:
    def call(action: str, begin: int, end: int | None, result: str = "done", **fields: object) -> Call:
        kind = str(fields.pop("kind", "set"))
        made = Call("o", kind, 0, action, int(fields.get("value", 0)), begin, end, result)  # type: ignore[call-overload]
        made.values = list(fields.get("values", []))  # type: ignore[call-overload]
        return made

    tag = {"kind": "register"}
    wrong = {
        "a row that was acknowledged is not read": [call("add", 1, 2, value=3), call("read", 3, 4, values=[])],
        "a row that was deleted is read": [
            call("add", 1, 2, value=3), call("remove", 3, 4, value=3), call("read", 5, 6, values=[3])
        ],
        "a read goes back": [
            call("add", 1, 9, value=3), call("read", 2, 3, values=[3]), call("read", 4, 5, values=[])
        ],
        "two create one name": [call("create", 1, 4), call("create", 2, 5)],
        "a name is refused that nobody has": [call("create", 1, 2, "refused")],
        "a name is there that was dropped": [call("create", 1, 2), call("drop", 3, 4), call("has", 5, 6, "yes")],
        "a right is used after it was revoked": [call("add", 1, 2), call("remove", 3, 4), call("has", 5, 6, "yes")],
        "a tag is where it was not moved": [
            call("create", 1, 2, value=1, **tag), call("move", 3, 4, value=2, **tag), call("get", 5, 6, value=1, **tag)
        ],
        "a tag is moved that was dropped": [
            call("create", 1, 2, value=1, **tag), call("drop", 3, 4, **tag), call("move", 5, 6, value=2, **tag)
        ],
    }  # fmt: skip
    right = {
        "what nobody knows was done": [call("add", 1, None, "", value=3), call("read", 3, 4, values=[3])],
        "what nobody knows was not done": [call("add", 1, None, "", value=3), call("read", 3, 4, values=[])],
        "calls at once, in either order": [call("add", 1, 9, value=3), call("read", 2, 3, values=[])],
    }
    calls = []
    for verdict, histories in ((ILLEGAL, wrong), (OK, right)):
        for name, history in histories.items():
            for each in history:
                each.object = f"{verdict} {name}"
            calls += history
    assert all(name.startswith(verdict) for name, verdict in judge(checker, calls).items())
