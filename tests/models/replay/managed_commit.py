"""`managed_commit` on servers: two that commit staged manifests, a client that bypasses them, one that comes later."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError

from tests.models.replay.actors import CONTINUES, Actor, Called, Gate, failed
from tests.models.replay.manifests import Manifests, final_name
from tests.models.replay.servers import ServerStage
from tests.models.replay.stage import Scene
from tests.tables.served import ask
from tiltyard.model.branches import MAIN
from tiltyard.model.spec import models
from tiltyard.tables.commits import commit, finalizing
from tiltyard.tables.versions.records import latest_stored_version

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TableRecord

SERVERS, BYPASS, LATER = (1, 2), 3, 4
VERSIONS = 3
TRIES = 2


def _lost(called: Called) -> int:
    if called.error is None:
        return CONTINUES if called.result is None else 0
    return int(isinstance(called.error, ConcurrentModificationError))


def _unfinished(called: Called) -> int:
    """Return the version of the model that was looked at, if it is not final."""
    return int(called.values[2].version) - 1 if called.result is None else 0


FIND_LATEST = Gate("FIND_LATEST", lambda called: called.result - 1)
PUT = Gate("PUT", _lost)
FIND_UNFINISHED = Gate("FIND_UNFINISHED", _unfinished, lambda outcome: outcome > 0)


class ManagedCommit(ServerStage):
    """Version n of the model is n + 1 of the table, whose first one is there."""

    model = "managed_commit"
    stops_before = frozenset({"PUT", "ROLL_BACK", "RECORD", "ACKNOWLEDGE"})
    waits = {LATER: frozenset({*SERVERS, BYPASS})}  # noqa: RUF012  # of the class, as its base says

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self._manifests = Manifests(root / "staged", (*SERVERS, BYPASS, LATER), VERSIONS)
        for who in (*SERVERS, LATER):
            self.open_server(
                who,
                store={
                    "pending_versions": Gate("READ_PENDING"),
                    "record_versions": Gate("RECORD", lambda called: int(not called.result[0][1])),
                    "roll_back_version": Gate("ROLL_BACK"),
                },
                manifests=dict.fromkeys(("publish_checked", "finalize", "finalize_content"), PUT),
            )
        self.replace(commit, "validate_version", Gate("VALIDATE", failed))
        self.replace(finalizing, "stat_final_manifest", FIND_UNFINISHED)

    def set_scene(self) -> Scene:
        table = self.new_table()
        self._manifests.lay_out(Path(table.location))
        play = _Play(self, table, self._manifests)
        servers = {who: partial(play.commit_repeatedly, who) for who in SERVERS}
        return Scene({**servers, BYPASS: play.bypass, LATER: play.commit_later}, play.state)


class _Play:
    """One trace: `acked` is who was told that a version is theirs."""

    def __init__(self, stage: ManagedCommit, table: TableRecord, manifests: Manifests) -> None:
        self._stage = stage
        self._table = table
        self._location = Path(table.location)
        self._manifests = manifests
        self._staged: dict[str, int] = {}
        self._acked = dict.fromkeys(range(1, VERSIONS + 1), 0)

    def commit_repeatedly(self, who: int, actor: Actor) -> None:
        for _ in range(TRIES):
            self._commit(who, actor)

    def commit_later(self, actor: Actor) -> None:
        if self._find_latest(self._stage.ctx(LATER), actor) < VERSIONS:
            self._commit(LATER, actor)
        else:
            finalizing.finalize_pending(self._stage.ctx(LATER), self._table.id)

    def bypass(self, actor: Actor) -> None:
        """Put a manifest into storage as Lance does that commits without a catalog."""
        version = self._find_latest(self._stage.outside, actor) + 1
        if version > VERSIONS:
            return

        def put() -> int:
            try:
                os.link(self._manifests.path(BYPASS, version), self._location / "_versions" / final_name(version))
            except FileExistsError:
                return 0
            self._acked[version] = BYPASS
            return 1

        gate = Gate("PUT", lambda called: 0 if called.result else CONTINUES, lambda outcome: outcome == 0)
        actor.take(gate, put)

    def _find_latest(self, ctx: Context, actor: Actor) -> int:
        return actor.take(FIND_LATEST, latest_stored_version, ctx, self._table, MAIN) - 1

    def _commit(self, who: int, actor: Actor) -> None:
        ctx = self._stage.ctx(who)
        finalizing.finalize_pending(ctx, self._table.id)
        version = self._find_latest(ctx, actor) + 1
        if version > VERSIONS:
            return
        staged = self._manifests.stage(who, version, self._location)
        self._staged[staged] = who
        request = ask(
            models.CreateTableVersionRequest,
            id=self._table.name,
            version=version + 1,
            manifest_path=staged,
            naming_scheme="V2",
        )
        try:
            commit.create_table_version(ctx, request)
        except ConcurrentModificationError:
            return
        actor.take(Gate("ACKNOWLEDGE"), self._acked.__setitem__, version, who)

    def state(self) -> int:
        records = {record.version - 1: record.staged_path for record in self._stage.versions(self._table)}
        numbers = [
            *(self._staged[records[version]] if version in records else 0 for version in range(1, VERSIONS + 1)),
            *(self._manifests.writer(self._location, version) for version in range(1, VERSIONS + 1)),
            *self._acked.values(),
        ]
        return sum(number * 5**place for place, number in enumerate(numbers))
