"""`append_queue` on servers: two that insert a row each, and commit what they find in the queue."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa

from tests.models.replay.actors import Actor, Called, Gate
from tests.models.replay.catalog_away import commit_and_cut, cut, is_made
from tests.models.replay.servers import ServerStage
from tests.models.replay.stage import Scene
from tests.services.wire import stream
from tests.tables.served import ask
from tiltyard.api.bodies.uploads import MemoryBody
from tiltyard.model.branches import MAIN
from tiltyard.model.spec import models
from tiltyard.store import RETURNED
from tiltyard.tables.rows import append_queue, shared_appends
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.versions.records import stored_versions

if TYPE_CHECKING:
    from pathlib import Path

    from tiltyard.store import TableRecord

SERVERS, TIME = (1, 2), 3
LOOKS, EXPIRATIONS = 2, 2
RETURNED_IN_MODEL = 4
_QUEUE = "SELECT id, version FROM queued_appends WHERE table_id = ?"
_TURN = "SELECT holder, expires_at FROM append_turns WHERE table_id = ?"
_EXPIRE = "UPDATE append_turns SET expires_at = 1 WHERE table_id = ? AND holder <> '' AND expires_at > 1"
FAULTS = {"COMMIT_AWAY": partial(commit_and_cut, stays_away=True), "CUT": cut}


class Clock:
    """The time for `shared_appends`: it stands still until a server has looked LOOKS times, and is over then."""

    def __init__(self) -> None:
        self._looks = threading.local()

    def begin(self) -> None:
        self._looks.count = 0

    def look(self) -> None:
        self._looks.count += 1

    def monotonic(self) -> float:
        return math.inf if getattr(self._looks, "count", 0) >= LOOKS else 0.0

    def sleep(self, seconds: float) -> None:
        """Do not wait: gates do."""


class AppendQueue(ServerStage):
    """`owners` are the servers of the appends of a trace, by their ids."""

    model = "append_queue"
    stops_before = frozenset({"COMMIT", "RETURN", "END_TURN", "DELETE", "WITHDRAW", "ALONE", "ANSWER"})
    environment = frozenset({TIME})

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.owners = dict[str, int]()
        self._clock = Clock()
        for name, value in (
            ("time", self._clock),
            ("GATHER_SECONDS", 0.0),
            ("WAIT_SECONDS", 600.0),
            ("TURN_LEASE_MS", 600_000),
        ):
            self.patched.enter_context(patch.object(shared_appends, name, value))
        self.patched.enter_context(patch.object(append_queue, "_SHARED_SECONDS", 600.0))
        for who in SERVERS:
            self.open_server(
                who,
                store={
                    "queue_append": Gate("QUEUE", partial(self._queued, who)),
                    "claim_turn": Gate("CLAIM", lambda called: int(called.result is not None)),
                    "waiting_appends": Gate("GATHER", partial(self._gathered, who)),
                    "transact": Gate("COMMIT", is_made, faults=FAULTS),
                    "return_appends": Gate("RETURN"),
                    "end_turn": Gate("END_TURN"),
                    "append_state": Gate("LOOK", self._looked),
                    "delete_append": Gate("DELETE"),
                    "withdraw_append": Gate("WITHDRAW", lambda called: int(called.result is not None)),
                    "record_versions": Gate("ALONE", lambda called: int(not called.result[0][1])),
                },
            )
            self.seats[who].services.contention.is_contended = lambda key: True

    def _queued(self, who: int, called: Called) -> int:
        self.owners[called.values[0]] = who
        self._clock.begin()
        return 0

    def _gathered(self, who: int, called: Called) -> int:
        owners = {self.owners[append.id] for append in called.result}
        return (who in owners) + 2 * (3 - who in owners)

    def _looked(self, called: Called) -> int:
        self._clock.look()
        state = called.result
        if state.version == RETURNED:
            return 2
        return int(state.version is not None and (state.is_ended or state.is_turn_free))

    def set_scene(self) -> Scene:
        self.owners.clear()
        play = _Play(self, self.new_table(pa.table({"n": [0]})))
        servers = {who: partial(play.insert, who) for who in SERVERS}
        return Scene({**servers, TIME: play.pass_time}, play.state)


class _Play:
    """One trace."""

    def __init__(self, stage: AppendQueue, table: TableRecord) -> None:
        self._stage = stage
        self._table = table

    def insert(self, who: int, actor: Actor) -> None:
        request = ask(models.InsertIntoTableRequest, id=self._table.name)
        insert_into_table(self._stage.ctx(who), request, MemoryBody(stream(pa.table({"n": [who]}))))
        actor.take(Gate("ANSWER", lambda called: called.result), self._count, who)

    def _count(self, who: int) -> int:
        return int(self._stage.open(self._table).count_rows(f"n = {who}"))

    def pass_time(self, actor: Actor) -> None:
        gate = Gate("EXPIRE", lambda called: called.result, lambda outcome: outcome > 0)
        expired = 0
        while expired < EXPIRATIONS:
            expired += actor.take(gate, self._stage.change, _EXPIRE, self._table.id)

    def state(self) -> int:
        queued = {1: 0, 2: 0}
        for append, version in self._stage.rows(_QUEUE, self._table.id):
            number = 0 if version is None else RETURNED_IN_MODEL if version == RETURNED else version - 1
            queued[self._stage.owners[append]] = 1 + number
        turn = is_expired = 0
        for holder, expires_at in self._stage.rows(_TURN, self._table.id):
            turn = self._stage.owners.get(holder, 0)
            is_expired = int(bool(turn) and expires_at <= self._stage.outside.clock())
        versions = len(self._stage.versions(self._table))
        finals = len(stored_versions(self._stage.outside, self._table, MAIN)) - 1
        return queued[1] + 8 * (queued[2] + 8 * (turn + 4 * (is_expired + 2 * (versions + 4 * finals))))
