"""`idempotency` on servers: an insert with a key, sent to two of them, and once more when they have ended."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tests.models.replay.actors import Actor, Called, Gate
from tests.models.replay.catalog_away import commit_and_cut, cut, is_made
from tests.models.replay.servers import ServerStage
from tests.models.replay.stage import Scene
from tests.services.wire import stream
from tests.tables.served import ask
from tiltyard.api.bodies.uploads import MemoryBody
from tiltyard.api.idempotency import requests
from tiltyard.api.idempotency.keys import RequestKey
from tiltyard.calls.in_process_caller import find_handler
from tiltyard.model.spec import models, operations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tiltyard.context import Context
    from tiltyard.store import RequestRecord, TableRecord

SERVERS, TIME, LATER = (1, 2), 3, 4
HOLDERS = {1: 1, 2: 2, LATER: 3}
"""What the model calls the servers as holders of a lease."""
EXPIRATIONS = 2
ROWS = pa.table({"n": [1]})
INSERT = operations()["InsertIntoTable"]
_EXPIRE = "UPDATE requests SET lease_until = 1 WHERE id = ? AND status IS NULL AND lease_until > 1"


def _begun(called: Called) -> int:
    record, is_claimed = called.result
    return 1 if is_claimed else 0 if record.status is None else 2


def _refuse(call: Callable[[], Any]) -> Any:
    raise InvalidInputError("Refused.")


FAULTS = {
    "COMMIT_CUT": commit_and_cut,
    "COMMIT_AWAY": partial(commit_and_cut, stays_away=True),
    "CUT": cut,
    "REFUSE": _refuse,
}


class Idempotency(ServerStage):
    """Every insert is of one row into one table; its number of versions is how often it was made."""

    model = "idempotency"
    stops_before = frozenset({"RECOVER", "COMMIT", "RELEASE", "DISCARD", "FINISH", "ANSWER"})
    environment = frozenset({TIME})
    waits = {LATER: frozenset(SERVERS)}  # noqa: RUF012  # of the class, as its base says

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.requests = dict[int, requests.IdempotentRequests]()
        for who in HOLDERS:
            self.open_server(
                who,
                store={
                    "begin_request": Gate("BEGIN", _begun),
                    "record_fingerprint": Gate("CONFIRM", is_made),
                    "transact": Gate("COMMIT", is_made, faults=FAULTS if who in SERVERS else {}),
                    "finish_request": Gate("FINISH", lambda called: int(called.result)),
                    "release_request": Gate("RELEASE"),
                    "discard_or_release_request": Gate("DISCARD"),
                },
            )
            self.requests[who] = requests.IdempotentRequests(self.seats[who].services, None)
        self.owners = {served.owner: HOLDERS[who] for who, served in self.requests.items()}
        self.replace(requests, "recover_response", Gate("RECOVER", lambda called: int(called.result is not None)))

    def set_scene(self) -> Scene:
        play = _Play(self, self.new_table(ROWS))
        senders = {who: partial(play.send, who) for who in SERVERS}
        return Scene({**senders, TIME: play.pass_time, LATER: play.send_later}, play.state)


class _Play:
    """One trace: `_answers` is how many clients were told that the insert was made."""

    def __init__(self, stage: Idempotency, table: TableRecord) -> None:
        self._stage = stage
        self._table = table
        self._key = RequestKey(table.name, "insert")
        self._answers = 0

    def send(self, who: int, actor: Actor) -> None:
        """Do what a server does with a request, whose client sends it again without waiting."""
        request = requests.IdempotentRequest(
            self._stage.requests[who], self._key, INSERT, find_handler("InsertIntoTable")
        )
        request._body = stream(ROWS)
        request._request = ask(models.InsertIntoTableRequest, id=self._table.name)

        def work(ctx: Context) -> Any:
            return find_handler("InsertIntoTable").run(ctx, request._request, MemoryBody(request._body))

        with suppress(LanceNamespaceError):
            response = request._attempt(self._stage.ctx(who), work)
            if response is requests._PENDING:
                return
            if not isinstance(response, requests.Replay):
                request._finish(200, "{}", acknowledged=True)
            actor.take(Gate("ANSWER"), self._answer)

    def send_later(self, actor: Actor) -> None:
        actor.take(Gate("EXPIRE", lambda called: 1), self._expire)
        self.send(LATER, actor)

    def pass_time(self, actor: Actor) -> None:
        expired = 0
        while expired < EXPIRATIONS:
            expired += actor.take(
                Gate("EXPIRE", lambda called: called.result, lambda outcome: outcome > 0), self._expire
            )

    def _answer(self) -> None:
        self._answers += 1

    def _expire(self) -> int:
        return self._stage.change(_EXPIRE, self._table.name)

    def state(self) -> int:
        record = self._stage.outside.store.describe_request(self._table.name)
        effects = len(self._stage.versions(self._table))
        return (0 if record is None else self._number(record)) + 1024 * (effects + 4 * self._answers)

    def _number(self, record: RequestRecord) -> int:
        is_leased = record.lease_until > self._stage.outside.clock()
        state = int(record.version is not None) + 2 * int(record.status is not None)
        return 1 + 2 * (self._stage.owners[record.owner] + 4 * (record.attempts + 8 * (is_leased + 2 * state)))
