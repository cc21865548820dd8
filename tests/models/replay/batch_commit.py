"""`batch_commit` on servers: a publication of two tables, two withdrawals, a reader, and one who comes later.

A table's values are told by whose manifest a version has: of the value 0, or of 1, which both tables have first.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError

from tests.models.replay.actors import CONTINUES, Actor, Called, Gate, failed
from tests.models.replay.manifests import Manifests
from tests.models.replay.servers import ServerStage
from tests.models.replay.stage import Scene
from tests.tables.served import ask
from tiltyard.model.branches import MAIN
from tiltyard.model.spec import models
from tiltyard.tables.commits import batch_commit, finalizing
from tiltyard.tables.versions.records import latest_stored_version

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TableRecord

PUBLICATION, WITHDRAWALS, LATER, READER = 1, {2: 0, 3: 1}, 4, 5
VERSIONS = 4
WRITERS = {0: 1, 1: 2}
"""The writers of manifests, by the value that these stand for."""


class BatchCommit(ServerStage):
    """`numbers` are those of a trace's tables, by their ids and by their locations."""

    model = "batch_commit"
    stops_before = frozenset({"PUT", "RECORD"})
    waits = {LATER: frozenset({PUBLICATION, *WITHDRAWALS})}  # noqa: RUF012  # of the class, as its base says

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self._manifests = Manifests(root / "staged", tuple(WRITERS.values()), VERSIONS)
        self.numbers = dict[object, int]()
        put = Gate("PUT", self._put)
        for who in (PUBLICATION, *WITHDRAWALS, LATER, READER):
            self.open_server(
                who,
                store={
                    "pending_versions": Gate("READ_PENDING", lambda called: self.numbers[called.values[0]]),
                    "transact": Gate("RECORD", failed),
                },
                manifests=dict.fromkeys(("publish_checked", "finalize", "finalize_content"), put),
            )
        self.replace(batch_commit, "validate_versions", Gate("VALIDATE", failed))
        self.replace(
            finalizing,
            "stat_final_manifest",
            Gate(
                "FIND_UNFINISHED",
                lambda called: called.values[2].version - 1 if called.result is None else 0,
                lambda outcome: outcome > 0,
            ),
        )

    def _put(self, called: Called) -> int:
        return CONTINUES if called.result is None else self.numbers[called.values[0]]

    def set_scene(self) -> Scene:
        tables = [self.new_table(), self.new_table()]
        self.numbers = {name: number for number, table in enumerate(tables) for name in (table.id, table.location)}
        for table in tables:
            self._manifests.lay_out(Path(table.location))
        play = _Play(self, tables, self._manifests)
        withdrawals = {who: partial(play.withdraw, who, mine) for who, mine in WITHDRAWALS.items()}
        return Scene(
            {PUBLICATION: play.publish, **withdrawals, LATER: play.finish_all, READER: play.read_both}, play.state
        )


class _Play:
    """One trace: `_staged` has the value that each staged manifest stands for."""

    def __init__(self, stage: BatchCommit, tables: list[TableRecord], manifests: Manifests) -> None:
        self._stage = stage
        self._tables = tables
        self._manifests = manifests
        self._staged: dict[str, int] = {}

    def publish(self, actor: Actor) -> None:
        bases = [self._read(PUBLICATION, actor, number) for number in (0, 1)]
        self._commit(PUBLICATION, [self._version(number, base + 1, 1) for number, base in enumerate(bases)])

    def withdraw(self, who: int, mine: int, actor: Actor) -> None:
        """Take one from a table's value, if the sum of both allows it, with a check of the other table's version."""
        other = 1 - mine
        base, other_base = self._read(who, actor, mine), self._read(who, actor, other)
        value = self._value(mine, base)
        if value > 0 and value + self._value(other, other_base) > 1:
            check = {"check_table_version": {"id": [self._tables[other].name], "version": other_base + 1}}
            self._commit(who, [self._version(mine, base + 1, value - 1), check])

    def read_both(self, actor: Actor) -> None:
        first = actor.take(Gate("BEGIN_0", faults={"BEGIN_1": lambda call: 1}), lambda: 0)
        for number in (first, 1 - first):
            self._read(READER, actor, number)

    def finish_all(self, actor: Actor) -> None:
        for table in self._tables:
            finalizing.finalize_pending(self._stage.ctx(LATER), table.id)

    def _read(self, who: int, actor: Actor, number: int) -> int:
        """Return the latest version that a table has, as readers do: once what is pending is final."""
        ctx, table = self._stage.ctx(who), self._tables[number]
        finalizing.finalize_pending(ctx, table.id)
        return actor.take(Gate("READ", lambda called: called.result - 1), latest_stored_version, ctx, table, MAIN) - 1

    def _value(self, number: int, version: int) -> int:
        if version == 0:
            return 1
        writer = self._manifests.writer(Path(self._tables[number].location), version)
        return next(value for value, known in WRITERS.items() if known == writer)

    def _version(self, number: int, version: int, value: int) -> dict[str, Any]:
        table = self._tables[number]
        staged = self._manifests.stage(WRITERS[value], version, Path(table.location))
        self._staged[staged] = value
        fields = {"id": [table.name], "version": version + 1, "manifest_path": staged, "naming_scheme": "V2"}
        return {"create_table_version": fields}

    def _commit(self, who: int, entries: list[dict[str, Any]]) -> None:
        ctx: Context = self._stage.ctx(who)
        try:
            batch_commit.batch_commit_tables(ctx, ask(models.BatchCommitTablesRequest, operations=entries))
        except ConcurrentModificationError:
            return

    def state(self) -> int:
        records = [self._stage.versions(table) for table in self._tables]
        finals = [
            sum(self._manifests.writer(Path(table.location), version) > 0 for version in range(1, VERSIONS + 1))
            for table in self._tables
        ]
        values = [self._staged[found[-1].staged_path] if found else 1 for found in records]
        numbers = [*map(len, records), *finals]
        return sum(number * 5**place for place, number in enumerate(numbers)) + 625 * (values[0] + 2 * values[1])
