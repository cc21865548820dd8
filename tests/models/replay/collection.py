"""`collection` on servers: one commits a version, one tags an old one, one clones it, one collects garbage.

Two calls of Lance look first and then change something: the creation of a tag, and the removal of old versions. Each is
taken apart here, into the look, as Lance does it, and the change, which makes or deletes the files that Lance would.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import lance
import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError, TableVersionNotFoundError

from tests.models.replay.actors import CONTINUES, Actor, Called, Gate
from tests.models.replay.managed_commit import PUT
from tests.models.replay.manifests import final_name
from tests.models.replay.servers import ServerStage
from tests.models.replay.stage import Scene
from tests.models.replay.turn import CLAIMS, ReplayedTurn
from tests.tables.served import ask
from tiltyard.config import DAY_MS
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.storage.manifests.manifest_format import tag_file
from tiltyard.tables.commits import commit
from tiltyard.tables.upkeep import garbage
from tiltyard.tables.versions import clone, tags
from tiltyard.tables.versions.removal_turns import OLD_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.models.replay.actors import Seat
    from tiltyard.context import Context
    from tiltyard.store import TableRecord

WRITER, TAGGER, CLONER, TIME, COLLECTOR = 1, 2, 3, 4, 5
APART_SECONDS = 2.0
"""Between versions 1 and 2: the removal is of what is older than a moment between them."""
SAFETY_DAYS, AGE_DAYS, WORK_DAYS = 1.0, 2.0, 3.0
"""The setting; how old files are once they are; and when their writer began."""
TAG = "tag"
_WORKING = "SELECT COUNT(*) FROM transactions WHERE table_id = ?"
_BEGAN = "UPDATE transactions SET created_at = ? WHERE table_id = ?"
_RELEASE = "DELETE FROM transactions WHERE table_id = ?"


class Files:
    """The files of tables with two versions, and of a third one: made by Lance once."""

    def __init__(self, folder: Path) -> None:
        self._base, self._third = folder / "base", folder / "third"
        lance.write_dataset(pa.table({"n": [1]}), self._base)
        self._tag = self._take_tag()
        [self.first] = self._data(self._base)
        self.between = time.time() + APART_SECONDS / 2
        time.sleep(APART_SECONDS)
        lance.write_dataset(pa.table({"n": [2]}), self._base, mode="overwrite")
        shutil.copytree(self._base, self._third)
        lance.dataset(self._third).insert(pa.table({"n": [3]}))
        [self.third] = self._data(self._third) - self._data(self._base)
        [self.transaction] = {
            path.name
            for path in (self._third / "_transactions").iterdir()
            if not (self._base / "_transactions" / path.name).exists()
        }

    def _take_tag(self) -> bytes:
        dataset = lance.dataset(self._base)
        dataset.tags.create(TAG, 1)
        content = (self._base / tag_file(TAG)).read_bytes()
        dataset.tags.delete(TAG)
        return content

    @staticmethod
    def _data(folder: Path) -> set[str]:
        return {path.name for path in (folder / "data").iterdir()}

    def lay_out(self, location: Path) -> None:
        shutil.copytree(self._base, location, copy_function=os.link)

    def write_third(self, location: Path) -> None:
        """Write the files that version 3 refers to; copies, since their age is changed."""
        for folder, name in (("_transactions", self.transaction), ("data", self.third)):
            shutil.copyfile(self._third / folder / name, location / folder / name)

    def stage_third(self, location: Path, staged: Path) -> None:
        shutil.copyfile(self._third / "_versions" / final_name(2), staged)

    def write_tag(self, location: Path) -> None:
        file = location / tag_file(TAG)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self._tag)

    @property
    def days_since(self) -> float:
        """How many days ago the moment between versions 1 and 2 was."""
        return (time.time() - self.between) / 86400


class _Options:
    """What is to be collected: what is older than the moment between versions 1 and 2, whenever that is asked."""

    dry_run = False

    def __init__(self, files: Files) -> None:
        self._files = files

    @property
    def keep_versions_days(self) -> float:
        return self._files.days_since


class _Wrapped:
    """A dataset of which some methods are others."""

    def __init__(self, inner: lance.LanceDataset, **methods: Any) -> None:
        self._inner = inner
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if name in self._methods else getattr(self._inner, name)


class Collection(ServerStage):
    """Version n of the model is n of the table; `turn` is that of old versions."""

    model = "collection"
    stops_before = frozenset(
        {
            "STAGE",
            "RECORD",
            "PUT",
            "ACKNOWLEDGE",
            "TAG",
            "CONFIRM",
            "CLONE",
            "END_TURN",
            "FINALIZE",
            "REMOVE_OLD",
            "LIST",
        }
        | {"FIND_STAGED", "REMOVE"}
    )
    environment = frozenset({TIME})

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, conflict_timeout=CLAIMS, gc_safety_days=SAFETY_DAYS, **settings)
        self.files = Files(root / "made")
        self.turn = ReplayedTurn(self, OLD_VERSIONS)
        self.open_server(WRITER, {"record_versions": Gate("RECORD")}, dict.fromkeys(_MANIFESTS, PUT))
        self.open_server(TAGGER, {"turn_holder": _CONFIRM})
        self.open_server(CLONER, {**self.turn.gates(CLONER), "transact": Gate("CLONE")})
        self.open_server(COLLECTOR, self.turn.gates(COLLECTOR))
        self.replace(commit, "validate_version", Gate("RECORD", _validated))
        self.replace(garbage, "finalize_all", Gate("FINALIZE"))
        self.replace(garbage, "table_files", Gate("LIST"))
        self.replace(garbage, "stale_staged", Gate("FIND_STAGED", lambda called: len(called.result)))
        self.replace(garbage, "_remove_files", Gate("REMOVE", lambda called: int(bool(called.values[2]))))
        self._take_apart(garbage, "open_branches", self._branches)
        self._take_apart(tags, "open_for_reading", self._open_for_tag)

    def _take_apart(self, module: object, name: str, take: Callable[[Seat, Any], Any]) -> None:
        """Let a function of a module, whose first argument is a context, return what `take` makes of its result."""
        function = getattr(module, name)

        def call(ctx: Context, *values: Any, **named: Any) -> Any:
            result = function(ctx, *values, **named)
            seat = next((seat for seat in self.seats.values() if seat.services is ctx.services), None)
            return result if seat is None else take(seat, result)

        self.patched.enter_context(patch.object(module, name, call))

    def _branches(self, seat: Seat, branches: Mapping[Any, lance.LanceDataset]) -> dict[Any, Any]:
        main = branches[MAIN]

        def clean_up(**arguments: Any) -> None:
            arguments["older_than"] = timedelta(days=self.files.days_since)
            plan = main.explain_cleanup_old_versions(**arguments, include_files=True, max_files=1000)
            if plan.candidate_files:
                seat.take(Gate("REMOVE_OLD"), _delete, [f"/{file.path}" for file in plan.candidate_files])

        return {**branches, MAIN: _Wrapped(main, cleanup_old_versions=clean_up)}

    def _open_for_tag(self, seat: Seat, table: Any) -> Any:
        location = Path(table.record.location)

        def create(tag: str, target: object) -> None:
            first = location / "_versions" / final_name(0)
            if not seat.take(Gate("LOOK", lambda called: int(called.result)), first.exists):
                raise TableVersionNotFoundError("No version 1.")
            seat.take(Gate("TAG"), self.files.write_tag, location)

        own: Any = _Wrapped(table.dataset, tags=_Wrapped(table.dataset.tags, create=create))
        shared = _Wrapped(table.dataset, checkout_version=lambda version: own)
        return SimpleNamespace(record=table.record, dataset=shared)

    def set_scene(self) -> Scene:
        name = f"t{uuid4().hex}"
        location = self.outside.storage.new_location(Id((name,)))
        self.files.lay_out(Path(location))
        play = _Play(self, self.outside.store.insert_table((name,), location, {}, managed=True))
        scripts = {
            WRITER: play.write,
            TAGGER: play.tag,
            CLONER: play.clone,
            TIME: play.pass_time,
            COLLECTOR: play.collect,
        }
        return Scene(scripts, play.state)


_MANIFESTS = ("publish_checked", "finalize", "finalize_content")
_CONFIRM = Gate(
    "CONFIRM",
    lambda called: int(called.result is None or not called.result.startswith("removal ")),
    lambda outcome: outcome != 0,
)


def _validated(called: Called) -> int:
    """Return that the action goes on in the record, or 1: it is refused."""
    return CONTINUES if called.error is None else 1


def _delete(paths: Sequence[str]) -> None:
    for path in paths:
        Path(path).unlink()


class _Play:
    """One trace: `_tagged` and `_acknowledged` are what callers were told."""

    def __init__(self, stage: Collection, table: TableRecord) -> None:
        self._stage = stage
        self._table = table
        self._location = Path(table.location)
        self._staged = self._location / "_versions" / f"{final_name(2)}-{uuid4()}"
        self._tagged = self._acknowledged = self._is_old = self._has_ended = False

    def write(self, actor: Actor) -> None:
        actor.take(Gate("BEGIN", faults={"WORK": lambda call: self._begin_work()}), lambda: None)
        files, location = self._stage.files, self._location
        actor.take(Gate("WRITE"), files.write_third, location)
        actor.take(Gate("STAGE"), files.stage_third, location, self._staged)
        request = ask(
            models.CreateTableVersionRequest,
            id=self._table.name,
            version=3,
            manifest_path=str(self._staged),
            naming_scheme="V2",
        )
        with suppress(LanceNamespaceError):
            commit.create_table_version(self._stage.ctx(WRITER), request)
            actor.take(Gate("ACKNOWLEDGE"), setattr, self, "_acknowledged", True)
        self._has_ended = True

    def _begin_work(self) -> None:
        """Begin something before the files are written that age later."""
        store, now = self._stage.outside.store, self._stage.outside.clock()
        store.create_transaction("work", self._table.id, {}, {})
        self._stage.change(_BEGAN, now - int(WORK_DAYS * DAY_MS), self._table.id)

    def tag(self, actor: Actor) -> None:
        actor.take(Gate("BEGIN"), lambda: None)
        request = ask(models.CreateTableTagRequest, id=self._table.name, tag=TAG, version=1)
        with suppress(LanceNamespaceError):
            tags.create_table_tag(self._stage.ctx(TAGGER), request)
            actor.take(Gate("ACKNOWLEDGE"), setattr, self, "_tagged", True)

    def clone(self, actor: Actor) -> None:
        request = ask(
            models.CloneTableRequest,
            id=f"{self._table.name}clone",
            source_location=self._table.location,
            source_version=1,
        )
        with suppress(LanceNamespaceError):
            clone.clone_table(self._stage.ctx(CLONER), request)

    def collect(self, actor: Actor) -> None:
        options: Any = _Options(self._stage.files)
        garbage.collect(self._stage.ctx(COLLECTOR), self._table, options)

    def pass_time(self, actor: Actor) -> None:
        faults = {"RELEASE": lambda call: self._release(), "EXPIRE": lambda call: self._stage.turn.expire(self._table)}
        gate = Gate("AGE", lambda called: int(called.result), lambda outcome: outcome > 0, faults)
        while True:
            actor.take(gate, self._age)

    @property
    def _writer_has_ended(self) -> bool:
        actor = self._stage.seats[WRITER].actor
        return self._has_ended or (actor is not None and actor.is_stopped)

    def _age(self) -> bool:
        if self._is_old or not (self._staged.exists() or self._writer_has_ended):
            return False
        then = time.time() - AGE_DAYS * 86400
        files = self._stage.files
        for file in (f"data/{files.third}", f"_transactions/{files.transaction}", f"_versions/{self._staged.name}"):
            with suppress(FileNotFoundError):
                os.utime(self._location / file, (then, then))
        self._is_old = True
        return True

    def _release(self) -> bool:
        return self._writer_has_ended and self._stage.change(_RELEASE, self._table.id) > 0

    def state(self) -> int:
        files, location, store = self._stage.files, self._location, self._stage.outside.store
        bits = (
            (location / "data" / files.first).exists(),
            (location / "data" / files.third).exists(),
            (location / "_versions" / final_name(0)).exists(),
            (location / "_versions" / final_name(2)).exists(),
            self._staged.exists(),
            bool(self._stage.versions(self._table)),
            self._stage.rows(_WORKING, self._table.id) != [(0,)],
            (location / tag_file(TAG)).exists(),
            self._tagged,
            bool(store.clone_locations(self._table.location)),
            self._acknowledged,
        )
        return sum(bit << place for place, bit in enumerate(bits)) + (self._stage.turn.owner(self._table) << len(bits))
