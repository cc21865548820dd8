"""A turn of tables (`tiltyard.tables.turns`) on replayed servers: who has it, and leases that end."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

from tests.models.replay.actors import Called, Gate
from tiltyard.tables import turns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.models.replay.servers import ServerStage
    from tiltyard.store import TableRecord

CLAIMS = 300.0
"""How often a call asks for a turn before it gives up: the setting `conflict_timeout`, by the clock below."""
LEASE_MS = 600_000
_HOLDER = "SELECT holder, expires_at FROM append_turns WHERE table_id = ? AND branch = ?"
_EXPIRE = "UPDATE append_turns SET expires_at = 1 WHERE table_id = ? AND branch = ? AND holder = ? AND expires_at > 1"


class _Clock:
    """The time for turns: whoever waits lets a second pass, for itself and for nobody else."""

    def __init__(self) -> None:
        self._now = threading.local()

    def monotonic(self) -> float:
        return float(getattr(self._now, "seconds", 0))

    def sleep(self, seconds: float) -> None:
        self._now.seconds = self.monotonic() + 1


class ReplayedTurn:
    """The turn of a name on the servers of a stage; `_owners` are who has had it, by what they called themselves."""

    def __init__(self, stage: ServerStage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._owners = dict[str, int]()
        for attribute, value in (("time", _Clock()), ("LEASE_MS", LEASE_MS)):
            stage.patched.enter_context(patch.object(turns, attribute, value))

    def gates(self, who: int) -> Mapping[str, Gate]:
        """Return the gates of a process's store: a claim that fails is tried again, and not to be seen."""
        claim = Gate("CLAIM", partial(self._claimed, who), lambda outcome: outcome > 0)
        return {"claim_turn": claim, "end_turn": Gate("END_TURN")}

    def _claimed(self, who: int, called: Called) -> int:
        if called.error is not None or called.result is None:
            return 0
        self._owners[called.values[2]] = who
        return 1

    def owner(self, table: TableRecord) -> int:
        """Return the process that has a table's turn; 0 if none has."""
        return self._find(table)[1]

    def _find(self, table: TableRecord) -> tuple[str, int]:
        for holder, expires_at in self._stage.rows(_HOLDER, table.id, self._name):
            if holder and expires_at > self._stage.outside.clock():
                return holder, self._owners[holder]
        return "", 0

    def expire(self, table: TableRecord) -> int:
        """End the lease on a table's turn if its process was stopped; return 1, or 0 if there is none."""
        holder, owner = self._find(table)
        actor = self._stage.seats[owner].actor if owner else None
        if actor is None or not actor.is_stopped:
            return 0
        return self._stage.change(_EXPIRE, table.id, self._name, holder)
