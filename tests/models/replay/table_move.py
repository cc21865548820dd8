"""`table_move` on servers: two calls move a table out, two move it in; a client of the other catalog; a reader.

The mounted catalog is one in memory, which all servers have; how real ones behave is shown by `tests/mounts`.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from tests.models.replay.actors import Actor, Called, Gate, Gated
from tests.models.replay.servers import ServerStage
from tests.models.replay.stage import Scene
from tests.models.replay.turn import CLAIMS, ReplayedTurn
from tests.tables.served import ask
from tiltyard.catalog.mounts.table_moves import MOVES, import_table, move_table
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.mounts.mounted_catalog import MountedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.models.replay.actors import Seat
    from tiltyard.mounts.registry.mount import Mount
    from tiltyard.mounts.registry.mounts import Mounts
    from tiltyard.store import TableRecord

OUT, IN, OTHER, READER, TIME = (1, 2), (3, 4), 5, 6, 7
NOTHING, OURS, FOREIGN, REFUSED = 0, 1, 2, 3
MOUNT = "theirs"
ELSEWHERE = "/elsewhere"
"""Where the other client's table is."""
CHANGES = 2
"""How often the other client changes something."""
_RECORD = "SELECT mount_id FROM tables WHERE location = ?"


class MemoryCatalog:
    """Entries of a catalog, by their ids: those methods of MountedCatalog that moves use."""

    def __init__(self) -> None:
        self.locations = dict[Id, str]()

    def get_table(self, table: Id) -> MountedTable:
        if table not in self.locations:
            raise TableNotFoundError(f"Table not found: {table}")
        return MountedTable(table, self.locations[table])

    def declare_table(self, table: Id, location: str, properties: Mapping[str, str]) -> MountedTable:
        if table in self.locations:
            raise TableAlreadyExistsError(f"Table already exists: {table}")
        self.locations[table] = location
        return self.get_table(table)

    def deregister_table(self, table: Id) -> MountedTable:
        gone = self.get_table(table)
        del self.locations[table]
        return gone

    def close(self) -> None:
        """Keep the entries."""


class WatchedMounts:
    """The mounts of a server, whose calls of the other catalog are gates."""

    def __init__(self, inner: Mounts, seat: Seat, gates: Mapping[str, Gate]) -> None:
        self._inner = inner
        self._seat = seat
        self._gates = gates

    def find(self, path: Sequence[str]) -> tuple[Mount, Id] | None:
        found = self._inner.find(path)
        if found is None:
            return None
        mount: Any = Gated(_OnlyOurs(found[0]), self._seat, self._gates)
        return mount, found[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ForeignError(TableNotFoundError):
    """The name is another table's by now: what a server does with that is not looked at."""


class _OnlyOurs:
    """A mount that finds no table of the other client."""

    def __init__(self, inner: Mount) -> None:
        self._inner = inner

    def find_table(self, below: Id) -> TableRecord:
        if self._inner.read_entry(below)[1] == ELSEWHERE:
            raise ForeignError(f"Another's: {below}")
        return self._inner.find_table(below)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _seen(called: Called) -> int:
    if called.error is not None:
        return NOTHING
    return FOREIGN if called.result[1] == ELSEWHERE else OURS


def _found(called: Called) -> int:
    if isinstance(called.error, ForeignError):
        return FOREIGN
    if isinstance(called.error, TableNotFoundError):
        return NOTHING
    return OURS if called.error is None else REFUSED


def _succeeded(called: Called) -> int:
    return int(called.error is None)


def _returned(called: Called) -> int:
    return int(called.result)


def _refuse(call: Callable[[], Any]) -> NoReturn:
    raise ConcurrentModificationError("Refused.")


MOUNT_GATES = {
    "add_entry": Gate("ADD", _succeeded),
    "read_entry": Gate("READ", _seen),
    "remove_entry": Gate("REMOVE", _succeeded),
    "find_table": Gate("FIND", _found),
}


class TableMove(ServerStage):
    """Each trace has a table, and a name below the mount; `turn` is that of moves."""

    model = "table_move"
    stops_before = frozenset({"ADD", "READ", "GIVE", "TAKE", "REMOVE", "END_TURN"})
    environment = frozenset({OTHER, TIME})

    def __init__(self, root: Path, **settings: Any) -> None:
        lake = {"kind": "dir", "root": str(root / "lake"), "mode": "manifest", "max_age": 0.0}
        (root / "lake").mkdir()
        super().__init__(root, mounts={MOUNT: lake}, conflict_timeout=CLAIMS, **settings)
        self.catalog = MemoryCatalog()
        self.turn = ReplayedTurn(self, MOVES)
        for who in (*OUT, *IN, READER):
            written = Gate("GIVE", _succeeded, faults={"REFUSE": _refuse}) if who in OUT else Gate("TAKE", _succeeded)
            self.open_server(who, {**self.turn.gates(who), "transact": written})
            self._share_catalog(who)

    def _share_catalog(self, who: int) -> None:
        seat = self.seats[who]
        found = seat.services.mounts.find((MOUNT,))
        assert found is not None
        mount: Any = found[0]
        mount._backend = self.catalog
        mounts: Any = WatchedMounts(seat.services.mounts, seat, MOUNT_GATES)
        seat.services = dataclasses.replace(seat.services, mounts=mounts)

    def set_scene(self) -> Scene:
        self.catalog.locations.clear()
        play = _Play(self, self.new_table())
        calls = {who: partial(play.move_out, who) for who in OUT} | {who: partial(play.move_in, who) for who in IN}
        return Scene({**calls, OTHER: play.change, READER: play.read, TIME: play.pass_time}, play.state)


class _Play:
    """One trace."""

    def __init__(self, stage: TableMove, table: TableRecord) -> None:
        self._stage = stage
        self._table = table
        self._path = Id((table.name,))
        self._below = Id((MOUNT, table.name))

    def move_out(self, who: int, actor: Actor) -> None:
        if not actor.take(Gate("BEGIN", _returned), lambda: self._here() == OURS):
            return
        request = ask(models.MoveTableRequest, id=list(self._path), new_id=list(self._below))
        with suppress(LanceNamespaceError):
            move_table(self._stage.ctx(who), request)

    def move_in(self, who: int, actor: Actor) -> None:
        ctx = self._stage.ctx(who)
        found = ctx.services.mounts.find(self._below)
        assert found is not None
        request = ask(models.MoveTableRequest, id=list(self._below), new_id=list(self._path))
        with suppress(LanceNamespaceError):
            import_table(ctx, request, *found)

    def change(self, actor: Actor) -> None:
        gate = Gate("DROP", _returned, lambda outcome: outcome > 0, {"PUT": lambda call: self._put()})
        changes = 0
        while changes < CHANGES:
            changes += actor.take(gate, self._drop)

    def _drop(self) -> int:
        is_there = self._there() == OURS
        if is_there:
            del self._stage.catalog.locations[self._path]
        return int(is_there)

    def _put(self) -> int:
        is_free = self._there() == NOTHING
        if is_free:
            self._stage.catalog.locations[self._path] = ELSEWHERE
        return int(is_free)

    def read(self, actor: Actor) -> None:
        with suppress(LanceNamespaceError):
            self._stage.ctx(READER).find_table(self._below)

    def pass_time(self, actor: Actor) -> None:
        gate = Gate("EXPIRE", _returned, lambda outcome: outcome > 0)
        while True:
            actor.take(gate, self._stage.turn.expire, self._table)

    def _here(self) -> int:
        [(mount,)] = self._stage.rows(_RECORD, self._table.location)
        return OURS if mount is None else FOREIGN

    def _there(self) -> int:
        location = self._stage.catalog.locations.get(self._path)
        return NOTHING if location is None else FOREIGN if location == ELSEWHERE else OURS

    def state(self) -> int:
        return self._here() + 3 * (self._there() + 3 * self._stage.turn.owner(self._table))
