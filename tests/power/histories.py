"""Histories: writes of all kinds, one after the other, and what each changes in the catalog as its clients see it.

A catalog is a dictionary: of a part, as `("table", "t1")` or `("tag", "t1", "v")`, its content. So what a write changes
is known before it is sent, and what a loss of power may leave of it is all of that or nothing.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import httpx
import pyarrow as pa

from tests.power.installation import CallFailedError, Installation, PowerLossError
from tests.services.forked_process import run_tiltyard
from tests.services.wire import Wire, stream

Part: TypeAlias = tuple[str, ...]
Content: TypeAlias = Any
Catalog: TypeAlias = dict[Part, Content]

ROWS = 20
BUILD_SECONDS = 60
COMPACTION_SECONDS = 60
MAX_BACKUPS = 2


@dataclass(frozen=True, slots=True)
class Write:
    """One write: the parts that it changes (None: gone), and the call."""

    changes: dict[Part, Content]
    call: Callable[[], object]
    between: dict[Part, Content] = field(default_factory=dict)
    """What there is in between, where the write is several commits."""


@dataclass(slots=True)
class World:
    """What a history knows while it runs; `by` has the kind of the last acknowledged write to each part."""

    installation: Installation
    wire: Wire
    chance: random.Random
    catalog: Catalog = field(default_factory=dict)
    by: dict[Part, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    sources: set[str] = field(default_factory=set)
    """Tables of which there may be clones."""

    def names(self, kind: str, *above: str) -> list[str]:
        """Return the names of parts of a kind, below some name."""
        length = len(above) + 1
        return [part[length] for part in self.catalog if part[0] == kind and part[1:length] == above]

    def pick(self) -> str:
        """Choose a table."""
        return self.chance.choice(self.names("table"))

    def rows(self, table: str) -> dict[int, int]:
        return dict(self.catalog["table", table])

    def new_name(self, prefix: str) -> str:
        return f"{prefix}{next(self.numbers)}"

    def new_rows(self, size: int = ROWS) -> dict[int, int]:
        """Make rows with ids that nothing has."""
        return {next(self.numbers): self.chance.randrange(1000) for _ in range(size)}

    def post(self, table: str, action: str, body: Any = None, **query: str) -> Any:
        """Call an operation on a table. Raises CallFailedError."""
        return self.check(self.wire.table([table], action, body, query=query))

    def post_path(self, path: str, **body: Any) -> Any:
        return self.check(self.wire.http.post(path, json=body))

    @staticmethod
    def check(response: httpx.Response) -> Any:
        if response.status_code != 200:
            raise CallFailedError(f"{response.request.url.path}: {response.status_code} {response.text[:500]}")
        return response.json()

    def is_needed(self, table: str) -> bool:
        """Whether snapshots or clones have to do with a table."""
        return any(table in content for part, content in self.catalog.items() if part[0] == "snapshot") or (
            table in self.sources or table.startswith("clone") or table in {"followed", "small"}
        )

    def version(self, table: str) -> int:
        return int(self.post(table, "describe", {"load_detailed_metadata": True})["version"])


def arrow(rows: dict[int, int]) -> bytes:
    """Encode rows."""
    return stream(pa.table({"id": pa.array(rows.keys(), pa.int64()), "x": pa.array(rows.values(), pa.int64())}))


def create(world: World) -> Write:
    name, rows = world.new_name("t"), world.new_rows()
    return Write({("table", name): rows}, lambda: world.post(name, "create", arrow(rows)))


def insert(world: World) -> Write:
    name, rows = world.pick(), world.new_rows()
    return Write({("table", name): world.rows(name) | rows}, lambda: world.post(name, "insert", arrow(rows)))


def insert_much(world: World) -> Write:
    """Insert enough for many pages and several writes of a file."""
    name, rows = world.pick(), world.new_rows(20_000)
    return Write({("table", name): world.rows(name) | rows}, lambda: world.post(name, "insert", arrow(rows)))


def overwrite(world: World) -> Write:
    name, rows = world.pick(), world.new_rows()
    return Write({("table", name): rows}, lambda: world.post(name, "insert", arrow(rows), mode="overwrite"))


def merge(world: World) -> Write:
    name = world.pick()
    old = world.rows(name)
    rows = dict.fromkeys(world.chance.sample(sorted(old), min(len(old), 5)), 7777) | world.new_rows(5)
    query = {"on": "id", "when_matched_update_all": "true", "when_not_matched_insert_all": "true"}
    return Write({("table", name): old | rows}, lambda: world.post(name, "merge_insert", arrow(rows), **query))


def update(world: World) -> Write:
    name = world.pick()
    ids = world.chance.sample(sorted(world.rows(name)), min(len(world.rows(name)), 5))
    body = {"predicate": f"id IN ({', '.join(map(str, ids or [-1]))})", "updates": [["x", "x + 1000"]]}
    rows = {number: x + 1000 * (number in ids) for number, x in world.rows(name).items()}
    return Write({("table", name): rows}, lambda: world.post(name, "update", body))


def delete(world: World) -> Write:
    name = world.pick()
    ids = world.chance.sample(sorted(world.rows(name)), min(len(world.rows(name)), 3))
    rows = {number: x for number, x in world.rows(name).items() if number not in ids}
    body = {"predicate": f"id IN ({', '.join(map(str, ids or [-1]))})"}
    return Write({("table", name): rows}, lambda: world.post(name, "delete", body))


def restore(world: World) -> Write:
    """Make a version that has a tag the newest."""
    name = world.pick()
    if not (tags := world.names("tag", name)):
        return tag(world)
    chosen = world.chance.choice(tags)

    def call() -> object:
        version = world.post(name, "tags/version", {"tag": chosen})["version"]
        return world.post(name, "restore", {"version": version})

    return Write({("table", name): world.catalog["tag", name, chosen]}, call)


def index(world: World) -> Write:
    """Build an index; it is acknowledged once its transaction has succeeded."""
    name = world.pick()
    if world.names("index", name):
        return insert(world)

    def call() -> None:
        body = {"column": "id", "index_type": "BTREE", "name": "by_id"}
        transaction = world.post(name, "create_scalar_index", body)["transaction_id"]
        for _ in range(BUILD_SECONDS * 50):
            answer = world.check(world.wire.call("transaction", [transaction], "describe"))
            if answer["status"] == "Succeeded":
                return
            if answer["status"] not in {"Queued", "Running"}:
                raise CallFailedError(str(answer))
            time.sleep(0.02)
        raise CallFailedError("the index is not built")

    return Write({("index", name, "by_id"): True}, call)


def tag(world: World) -> Write:
    name, label = world.pick(), world.new_name("tag")
    rows = world.rows(name)
    return Write(
        {("tag", name, label): rows},
        lambda: world.post(name, "tags/create", {"tag": label, "version": world.version(name)}),
    )


def move_tag(world: World) -> Write:
    name = world.pick()
    if not (tags := world.names("tag", name)):
        return tag(world)
    label, rows = world.chance.choice(tags), world.rows(name)
    return Write(
        {("tag", name, label): rows},
        lambda: world.post(name, "tags/update", {"tag": label, "version": world.version(name)}),
    )


def drop_tag(world: World) -> Write:
    name = world.pick()
    if not (tags := world.names("tag", name)):
        return tag(world)
    label = world.chance.choice(tags)
    return Write({("tag", name, label): None}, lambda: world.post(name, "tags/delete", {"tag": label}))


def branch(world: World) -> Write:
    name, label = world.pick(), world.new_name("branch")
    rows = world.rows(name)
    return Write({("branch", name, label): rows}, lambda: world.post(name, "branches/create", {"name": label}))


def insert_into_branch(world: World) -> Write:
    name = world.pick()
    if not (branches := world.names("branch", name)):
        return branch(world)
    label, rows = world.chance.choice(branches), world.new_rows()
    content = world.catalog["branch", name, label] | rows
    return Write({("branch", name, label): content}, lambda: world.post(name, "insert", arrow(rows), branch=label))


def drop_branch(world: World) -> Write:
    name = world.pick()
    if not (branches := world.names("branch", name)):
        return branch(world)
    label = world.chance.choice(branches)
    return Write({("branch", name, label): None}, lambda: world.post(name, "branches/delete", {"name": label}))


def snapshot(world: World) -> Write:
    name, tables = (
        world.new_name("snapshot"),
        world.chance.sample(world.names("table"), min(2, len(world.names("table")))),
    )
    content = {table: world.rows(table) for table in tables}
    return Write(
        {("snapshot", name): content},
        lambda: world.post_path("/tiltyard/v1/snapshot/create", name=name, tables=[[table] for table in tables]),
    )


def drop_snapshot(world: World) -> Write:
    if not (names := world.names("snapshot")):
        return snapshot(world)
    name = world.chance.choice(names)
    return Write({("snapshot", name): None}, lambda: world.post_path("/tiltyard/v1/snapshot/drop", name=name))


def clone(world: World, *, shallow: bool = True) -> Write:
    source, name = world.pick(), world.new_name("clone")
    world.sources.add(source)

    def call() -> object:
        body = {"source_location": world.post(source, "describe")["location"], "is_shallow": shallow}
        return world.post(name, "clone", body)

    return Write({("table", name): world.rows(source)}, call)


def copy(world: World) -> Write:
    """Clone a table with its files."""
    return clone(world, shallow=False)


def drop(world: World) -> Write:
    name = world.pick()
    if len(world.names("table")) < 2 or world.is_needed(name):
        return create(world)
    changes: dict[Part, Content] = {part: None for part in world.catalog if part[1] == name and part[0] in OF_TABLES}
    return Write(changes | {("dropped", name): world.rows(name)}, lambda: world.post(name, "drop"))


def undrop(world: World) -> Write:
    if not (names := world.names("dropped")):
        return drop(world)
    name = world.chance.choice(names)
    changes = {("dropped", name): None, ("table", name): world.catalog["dropped", name]}
    return Write(changes, lambda: world.check(world.wire.http.post(f"/tiltyard/v1/table/{name}/undrop", json={})))


def rename(world: World) -> Write:
    name = world.pick()
    if world.is_needed(name) or any(part[1] == name and part[0] in OF_TABLES[1:] for part in world.catalog):
        return insert(world)
    new = world.new_name("t")
    changes = {("table", name): None, ("table", new): world.rows(name)}
    return Write(changes, lambda: world.post(name, "rename", {"new_table_name": new}))


def namespace(world: World) -> Write:
    name = world.new_name("n")
    return Write({("namespace", name): True}, lambda: world.check(world.wire.namespace([name], "create")))


def grant(world: World) -> Write:
    name, who = world.pick(), world.new_name("who")
    return Write(
        {("grant", name, who): True},
        lambda: world.post_path(
            "/tiltyard/v1/grant/add", object_kind="table", id=[name], grantee=who, privileges=["read"]
        ),
    )


def backup(world: World) -> Write:
    """Take a backup into a new target, or into one that exists."""
    targets = world.names("backup")
    if sum(world.catalog["backup", target] for target in targets) == MAX_BACKUPS:
        return insert(world)
    name = world.chance.choice(targets) if targets and world.chance.random() < 0.5 else world.new_name("backup")
    arguments = ("backup", "create", str(world.installation.disk.folder / name), *world.installation.catalog_flags)
    number = world.catalog.get(("backup", name), 0) + 1
    return Write({("backup", name): number}, lambda: run_command(*arguments))


def export(world: World) -> Write:
    table, name = world.pick(), f"{world.new_name('export')}.parquet"
    target = str(world.installation.disk.folder / name)
    return Write(
        {("export", name): world.rows(table)},
        lambda: run_command("export", table, target, "--server", world.installation.server.url),
    )


def run_command(*arguments: str) -> None:
    """Run a command of `tiltyard`. Raises CallFailedError."""
    done = run_tiltyard(*arguments)
    if done.returncode:
        raise CallFailedError(f"{arguments}: {done.stdout} {done.stderr}")


def ingest(world: World) -> Write:
    name, rows = world.new_name("t"), world.new_rows()
    return Write({("table", name): rows}, lambda: _lake(world, "ingest", table=name, rows=rows, mode="create"))


def write(world: World) -> Write:
    name, rows = world.pick(), world.new_rows()
    return Write(
        {("table", name): world.rows(name) | rows},
        lambda: _lake(world, "ingest", table=name, rows=rows, mode="append"),
    )


def upsert(world: World) -> Write:
    name = world.pick()
    old = world.rows(name)
    rows = dict.fromkeys(world.chance.sample(sorted(old), min(len(old), 5)), 8888) | world.new_rows(5)
    return Write({("table", name): old | rows}, lambda: _lake(world, "upsert", table=name, rows=rows))


def publish(world: World) -> Write:
    name, new = world.pick(), world.new_name("t")
    rows = {name: world.new_rows(), new: world.new_rows()}
    changes = {("table", name): world.rows(name) | rows[name], ("table", new): rows[new]}
    return Write(changes, lambda: _lake(world, "publish", tables=rows, new=new))


def follow(world: World) -> Write:
    """Let a stream append what is new in a folder."""
    name, rows = "followed", world.new_rows()
    content = world.catalog.get(("table", name), {}) | rows
    folder, file = str(world.installation.folder / "landing"), f"{min(rows):06}.jsonl"
    return Write(
        {("table", name): content},
        lambda: _lake(world, "stream", table=name, folder=folder, file=file, rows=rows),
        {("table", name): {}} if ("table", name) not in world.catalog else {},  # it creates its table first
    )


def compaction(world: World) -> Write:
    """Insert into a table that upkeep compacts soon, or wait until it has."""
    name, rows = "small", world.new_rows(5)
    part = ("table", name)
    if part not in world.catalog:
        properties = json.dumps({"tiltyard.upkeep.small_fragments": "2"})
        return Write({part: rows}, lambda: world.post(name, "create", arrow(rows), properties=properties))
    if world.chance.random() < 0.7:
        return Write({part: world.rows(name) | rows}, lambda: world.post(name, "insert", arrow(rows)))

    def wait() -> None:
        for _ in range(COMPACTION_SECONDS * 10):
            if world.post(name, "stats")["fragment_stats"]["num_fragments"] <= 2:
                return
            time.sleep(0.1)
        raise CallFailedError("the table is not compacted")

    return Write({}, wait)


def commit(world: World) -> Write:
    """Commit files that a client has written."""
    name, rows = world.pick(), world.new_rows()
    return Write({("table", name): world.rows(name) | rows}, lambda: _lake(world, "commit", table=name, rows=rows))


def _lake(world: World, name: str, **arguments: Any) -> None:
    world.installation.client.call(name, **arguments)


OF_TABLES = ("table", "tag", "branch", "index", "grant")
"""Parts that go with a table."""

KINDS: dict[str, tuple[Callable[[World], Write], ...]] = {
    "create": (create,),
    "insert": (insert, insert_much),
    "overwrite": (overwrite,),
    "merge": (merge,),
    "update": (update,),
    "delete": (delete,),
    "restore": (tag, restore),
    "index": (create, index),
    "tags": (tag, move_tag, drop_tag),
    "branches": (branch, insert_into_branch, insert_into_branch, drop_branch),
    "snapshots": (snapshot, snapshot, drop_snapshot),
    "clones": (clone, copy),
    "drop and undrop": (create, drop, undrop),
    "rename": (rename,),
    "namespaces": (namespace,),
    "grants": (grant,),
    "backup": (backup,),
    "export": (export,),
    "jobs": (ingest, write, upsert),
    "streams": (follow,),
    "publish": (publish,),
    "compaction": (compaction,),
    "commits of clients": (commit,),
}
"""Kinds of writes; a history of several kinds takes each as often."""


@dataclass(slots=True)
class Outcome:
    """How a history ended: what was acknowledged, and what the last write, of unknown outcome, would have changed."""

    catalog: Catalog
    by: dict[Part, str]
    unsure: dict[Part, Content] = field(default_factory=dict)
    between: dict[Part, Content] = field(default_factory=dict)
    unsure_kind: str = ""
    acknowledged: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


def run_history(installation: Installation, seed: str, kinds: list[str], writes: int, changes: int) -> Outcome:
    """Do so many writes, of these kinds and inserts between them; the power goes after so many changes of the disk."""
    chance = random.Random(seed)
    with Wire(installation.server.url) as wire:
        world = World(installation, wire, chance)
        outcome = Outcome(world.catalog, world.by)
        with suppress(PowerLossError):
            installation.disk.arm(changes)
            _do("create", create(world), world, outcome)
            for _ in range(writes):
                kind = chance.choice(kinds) if chance.random() < 0.75 else "insert"
                _do(kind, chance.choice(KINDS[kind])(world), world, outcome)
        return outcome


def _do(kind: str, write: Write, world: World, outcome: Outcome) -> None:
    """Do a write. Raises PowerLossError."""
    try:
        write.call()
    except (httpx.HTTPError, OSError, AssertionError, CallFailedError) as error:
        if not world.installation.disk.is_cut:
            outcome.complaints.append(f"{kind} failed before the power was off: {error}")
            return
        outcome.unsure, outcome.between, outcome.unsure_kind = write.changes, write.between, kind
        raise PowerLossError from error
    outcome.acknowledged[kind] = outcome.acknowledged.get(kind, 0) + 1
    for part, content in write.changes.items():
        outcome.by[part] = kind
        if content is None:
            outcome.catalog.pop(part, None)
        else:
            outcome.catalog[part] = content
