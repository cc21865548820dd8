"""The operations that are swept, and what each promises."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import lance
import pyarrow as pa
from click.testing import CliRunner
from lance_namespace.errors import (
    TableNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
)

import tiltyard
from tests.faults.sweep.event_delivery import EVENTS
from tests.faults.sweep.installation import MOUNT, Installation, create_table, insert, work_off
from tests.faults.sweep.jobs import JOBS
from tests.faults.sweep.operation import Begin, SweptOperation
from tests.faults.sweep.removals import REMOVALS
from tests.faults.sweep.spark_jobs import SPARK_JOBS
from tests.services.wire import stream
from tests.store.test_earlier_catalogs import LATEST, check_access, check_entries, check_rows, make_catalog
from tiltyard.catalog.functions.secrets import read_secret_value
from tiltyard.catalog.mounts.mirror_sync import try_sync
from tiltyard.catalog.schedules.due import queue_due_job
from tiltyard.cli import main
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.model.principals import SERVER
from tiltyard.mounts import MountedCatalog, open_catalog
from tiltyard.mounts.registry.mount import LocationInUseError
from tiltyard.store import database_exists, is_empty_database
from tiltyard.tables.versions.snapshots import sweep_snapshots
from tiltyard.worker import Worker

TABLES = [["t"], ["u"]]


def command(*arguments: str) -> str:
    """Run a command of the CLI in this process; return what it prints."""
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def tags(installation: Installation, name: str) -> set[str]:
    """Return the tags of a table, by their files."""
    return set(lance.dataset(installation.location(name)).tags.list())


# Snapshots


def prepare_snapshots(installation: Installation) -> None:
    """Two tables, with a snapshot `kept` of their first rows, and more rows since."""
    with installation.namespace() as namespace:
        for path in TABLES:
            create_table(namespace, path, 1)
        namespace.call("CreateSnapshot", {"name": "kept", "tables": TABLES})
        for path in TABLES:
            insert(namespace, path, 2)


def create_snapshot(installation: Installation, begin: Begin) -> None:
    with installation.namespace() as namespace:
        begin()
        namespace.call("CreateSnapshot", {"name": "made", "tables": TABLES})


def finish_created_snapshot(installation: Installation) -> None:
    """There is a whole snapshot, or none and its name can be taken; with it go all of its tags."""
    with installation.namespace() as namespace:
        try:
            namespace.call("CreateSnapshot", {"name": "made", "tables": TABLES})
        except TableTagAlreadyExistsError:  # it had been made
            snapshot = namespace.call("DescribeSnapshot", {"name": "made"})["snapshot"]
            assert [table["version"] for table in snapshot["tables"]] == [2, 2]
        assert [tags(installation, name) for name in "tu"] == [{"kept", "made"}] * 2
        namespace.call("DropSnapshot", {"name": "made"})
        assert [tags(installation, name) for name in "tu"] == [{"kept"}] * 2


def drop_snapshot(installation: Installation, begin: Begin) -> None:
    with installation.namespace() as namespace:
        begin()
        namespace.call("DropSnapshot", {"name": "kept"})


def finish_dropped_snapshot(installation: Installation) -> None:
    """It is whole, or no snapshot any more; a worker removes what is left of it."""
    with installation.namespace() as namespace:
        try:
            namespace.call("DescribeSnapshot", {"name": "kept"})
        except TableTagNotFoundError:
            pass
        else:
            assert [tags(installation, name) for name in "tu"] == [{"kept"}] * 2
            namespace.call("DropSnapshot", {"name": "kept"})
        installation.sql("UPDATE snapshots SET created_at = 0")
        sweep_snapshots(Context(namespace._services, "sweep", principal=SERVER))
        assert installation.sql("SELECT name FROM snapshots") == []
        assert [tags(installation, name) for name in "tu"] == [set()] * 2
        namespace.call("CreateSnapshot", {"name": "kept", "tables": TABLES})


def lake_of(installation: Installation) -> tiltyard.Lake:
    return tiltyard.connect(installation.root, properties={"db": installation.url})


def restore_snapshot(installation: Installation, begin: Begin) -> None:
    snapshot = lake_of(installation).at("kept")
    begin()
    snapshot.restore()


def finish_restored_snapshot(installation: Installation) -> None:
    """All tables are restored or none is, and each once."""
    lake = lake_of(installation)
    shown = [sorted(lake.table(name).to_arrow()["id"].to_pylist()) for name in "tu"]
    assert shown in ([[1], [1]], [[1, 2], [1, 2]]), shown
    lake.at("kept").restore()
    assert [installation.ids(name) for name in "tu"] == [[1], [1]]
    assert [lake.table(name).version for name in "tu"] in ([3, 3], [4, 4])


# Training sets

SPLITS = {"train": 0.5, "test": 0.5}


def prepare_training_set(installation: Installation) -> None:
    with installation.namespace() as namespace:
        create_table(namespace, ["t"], *range(100))


def make_training_set(installation: Installation, begin: Begin) -> None:
    lake = lake_of(installation)
    begin()
    lake.training_set("s", "t", splits=SPLITS, by="id")


def finish_training_set(installation: Installation) -> None:
    """There is a whole set or none; made again, also of a table that has changed, it is one of a version alone."""
    lake = lake_of(installation)
    for found in lake.training_sets():
        assert found.verify() == found.digest
    lake.table("t").ingest(pa.table({"id": [100], "value": [0]}), mode="append")
    made = lake.training_set("s", "t", splits=SPLITS, by="id")
    assert made.verify() == made.digest
    assert sum(made.splits.values()) in (100, 101)
    made.drop()
    assert installation.sql("SELECT name FROM tables") == [("t",)]
    assert tags(installation, "t") == set()
    assert lake.training_sets() == []


# Moves between catalogs


def mounted(installation: Installation) -> Iterator[MountedCatalog]:
    """The mounted catalog itself."""
    catalog = open_catalog("dir", {"root": str(installation.folder / "lake"), "mode": "manifest"})
    with closing(catalog):
        yield catalog


THEIRS, OURS = [MOUNT, "a", "t"], ["t"]
POLICY = {"name": "p", "filter": "id > 1"}


def prepare_import(installation: Installation) -> None:
    """A table below a mount, with a policy and a grant."""
    (installation.folder / "lake").mkdir()
    with installation.namespace() as namespace:
        namespace.call("CreateNamespace", {"id": [MOUNT, "a"]})
        create_table(namespace, THEIRS, 1, 2)
        insert(namespace, THEIRS, 3)
        namespace.call("SetTablePolicy", {"id": THEIRS, **POLICY})
        namespace.call("CreateRole", {"role": "readers"})
        grant = {"object_kind": "table", "id": THEIRS, "grantee": "role:readers", "privileges": ["read"]}
        namespace.call("GrantPrivileges", grant)


def move_table(*ends: list[str]) -> Callable[[Installation, Begin], None]:
    def run(installation: Installation, begin: Begin) -> None:
        with installation.namespace() as namespace:
            begin()
            namespace.call("MoveTable", {"id": ends[0], "new_id": ends[1]})

    return run


def count_rows(namespace: tiltyard.Namespace, path: list[str]) -> int | None:
    """Return how many rows a table has; None if it is not there."""
    try:
        return namespace.count_table_rows({"id": path}).count
    except (TableNotFoundError, LocationInUseError):  # the latter: the other catalog has it now
        return None


def finish_move(*ends: list[str]) -> Callable[[Installation], None]:
    def finish(installation: Installation) -> None:
        """The table is never read under two names; then it is in the new catalog, with what it had."""
        with installation.namespace() as namespace:
            counts = [count_rows(namespace, path) for path in ends]
            assert counts in ([3, None], [None, 3]), counts
            with suppress(TableNotFoundError):  # it has moved
                namespace.call("MoveTable", {"id": ends[0], "new_id": ends[1]})
            assert [count_rows(namespace, path) for path in ends] == [None, 3]
        [(location, number)] = installation.sql("SELECT location, id FROM tables")
        assert lance.dataset(location).count_rows() == 3
        assert installation.sql(f"SELECT COUNT(*) FROM policies WHERE table_id = {number}") == [(1,)]
        assert installation.sql(f"SELECT COUNT(*) FROM grants WHERE object_id = {number}") == [(1,)]
        for catalog in mounted(installation):
            entries = catalog.list_tables(Id(("a",))).names
        assert entries == (("t",) if ends[1] == THEIRS else ())

    return finish


def prepare_export(installation: Installation) -> None:
    prepare_import(installation)
    with installation.namespace() as namespace:
        namespace.call("MoveTable", {"id": THEIRS, "new_id": OURS})


# Mounted catalogs


def drop_mounted(installation: Installation, begin: Begin = lambda: None) -> None:
    with installation.namespace() as namespace:
        begin()
        namespace.call("DropTable", {"id": THEIRS})


def finish_dropped_mounted(installation: Installation) -> None:
    """The table is there with all that it has, or gone; a new one of its name has neither its rows nor its grants."""
    with installation.namespace() as namespace:
        found = count_rows(namespace, THEIRS)
        assert found in (3, None), found
    if found is not None:
        drop_mounted(installation)
    for catalog in mounted(installation):
        assert catalog.list_tables(Id(("a",))).names == ()
    with installation.namespace() as namespace:
        create_table(namespace, THEIRS, 7)
        assert count_rows(namespace, THEIRS) == 1
        table = {"object_kind": "table", "id": THEIRS}
        assert namespace.call("ListGrants", table)["grants"] == []


RENAMED = [MOUNT, "a", "renamed"]


def prepare_mount_refresh(installation: Installation) -> None:
    """A table below a mount, with a policy and a grant, that another client gives another name."""
    prepare_import(installation)
    for catalog in mounted(installation):
        location = catalog.deregister_table(Id(("a", "t"))).location
        catalog.declare_table(Id(("a", "renamed")), location, {})


def refresh_mount(installation: Installation, begin: Begin = lambda: None) -> None:
    with installation.namespace() as namespace:
        begin()
        assert namespace.list_tables({"id": RENAMED[:-1]}).tables == ["renamed"]
        assert count_rows(namespace, RENAMED) == 3


def finish_mount_refresh(installation: Installation) -> None:
    """It has its new name alone, and its policy, which stays with what lies there; a grant was on the earlier entry."""
    refresh_mount(installation)
    with installation.namespace() as namespace:
        assert count_rows(namespace, THEIRS) is None
    [(number,)] = installation.sql("SELECT id FROM tables")
    assert installation.sql(f"SELECT COUNT(*) FROM policies WHERE table_id = {number}") == [(1,)]
    assert installation.sql("SELECT COUNT(*) FROM grants") == [(0,)]


# Backups


def prepare_backup(installation: Installation) -> None:
    """A catalog of two tables, of which one backup was taken before the last rows came."""
    with installation.namespace() as namespace:
        for path in TABLES:
            create_table(namespace, path, 1)
    take_backup(installation)
    with installation.namespace() as namespace:
        for path in TABLES:
            insert(namespace, path, 2)


def take_backup(installation: Installation, begin: Begin = lambda: None) -> None:
    begin()
    command("backup", "create", backups(installation), *place_of(installation))


def backups(installation: Installation) -> str:
    return str(installation.folder / "backups")


def place_of(installation: Installation) -> tuple[str, ...]:
    return "--root", installation.root, "--db", installation.url


def check_backups(installation: Installation) -> list[str]:
    """Check that each backup of the target is whole; return their ids, oldest first."""
    ids = [line.split()[0] for line in command("backup", "list", backups(installation)).splitlines()]
    for each in ids:
        command("backup", "verify", backups(installation), "--id", each)
    return ids


def finish_backup(installation: Installation) -> None:
    """A backup is there as a whole or not at all, and the next one has all; what a killed one left can be pruned."""
    assert len(check_backups(installation)) in (1, 2)
    take_backup(installation)
    command("backup", "prune", backups(installation), "--keep", "1", "--force")
    assert len(check_backups(installation)) == 1
    restore_backup(installation)
    check_restored(installation, [1, 2])


def prepare_prune(installation: Installation) -> None:
    prepare_backup(installation)
    take_backup(installation)


def prune_backups(installation: Installation, begin: Begin) -> None:
    begin()
    command("backup", "prune", backups(installation), "--keep", "1")


def finish_prune(installation: Installation) -> None:
    """The backups that are left are whole, the latest among them; and pruning goes on."""
    assert len(check_backups(installation)) in (1, 2)
    command("backup", "prune", backups(installation), "--keep", "1", "--force")
    assert len(check_backups(installation)) == 1
    restore_backup(installation)
    check_restored(installation, [1, 2])


def restore_backup(installation: Installation, begin: Begin = lambda: None) -> None:
    begin()
    command("backup", "restore", backups(installation), *place_of(restored(installation)))


def restored(installation: Installation) -> Installation:
    folder = installation.folder / "restored"
    return Installation(folder, f"sqlite:///{folder}.db")


def check_restored(installation: Installation, ids: list[int]) -> None:
    place = restored(installation)
    with place.namespace() as namespace:
        for path in TABLES:
            assert namespace.count_table_rows({"id": path}).count == len(ids)
            insert(namespace, path, 9)
            assert place.ids(path[0]) == [*ids, 9]


def finish_restore(installation: Installation) -> None:
    """There is no catalog yet, and the restore goes on when it is run again; or there is all of it."""
    place = restored(installation)
    if not database_exists(place.url) or is_empty_database(place.url):
        restore_backup(installation)
    check_restored(installation, [1])


# The catalog's database


def prepare_upgrade(installation: Installation) -> None:
    """A catalog of an early schema, with rows of its time."""
    make_catalog(installation.url, EARLY_SCHEMA, Path(installation.root))


def upgrade(installation: Installation, begin: Begin) -> None:
    begin()
    command("db", "upgrade", "--db", installation.url)


def finish_upgrade(installation: Installation) -> None:
    """The database has the old schema or the new one, and opens."""
    [(number,)] = installation.sql("SELECT MAX(version) FROM schema_migrations")
    assert number in (EARLY_SCHEMA, LATEST), number
    with tiltyard.Namespace(installation.root, installation.url, jobs=0) as namespace:
        check_entries(namespace, EARLY_SCHEMA)
        check_rows(namespace, Path(installation.root), EARLY_SCHEMA)
        check_access(namespace, installation.root, installation.url, EARLY_SCHEMA)


EARLY_SCHEMA = 12
SECRETS = ["a", "b", "c"]


def keys_setting(installation: Installation, *names: str) -> str:
    return json.dumps([f"file:{installation.folder / name}.key" for name in names])


def prepare_rotation(installation: Installation) -> None:
    """Secrets that the old key has encrypted."""
    for name in ("old", "new"):
        (installation.folder / f"{name}.key").write_text(base64.b64encode(os.urandom(32)).decode())
    keys = keys_setting(installation, "old")
    with tiltyard.Namespace(installation.root, installation.url, jobs=0, secret_keys=keys) as namespace:
        for name in SECRETS:
            namespace.call("CreateSecret", {"id": [name], "value": f"value of {name}"})


def rotate(installation: Installation, begin: Begin = lambda: None) -> None:
    os.environ["TILTYARD_SECRET_KEYS"] = keys_setting(installation, "new", "old")
    begin()
    command("db", "reencrypt-secrets", *place_of(installation))


def check_secrets(installation: Installation, *keys: str) -> None:
    setting = keys_setting(installation, *keys)
    with tiltyard.Namespace(installation.root, installation.url, jobs=0, secret_keys=setting) as namespace:
        ctx = Context(namespace._services)
        for name in SECRETS:
            record = ctx.store.describe_secret(ctx.store.describe_namespace(Id()).id, name)
            assert record is not None
            assert read_secret_value(ctx, Id((name,)), record) == f"value of {name}"


def finish_rotation(installation: Installation) -> None:
    """Both keys decrypt all, at every moment; and the new one alone once it was done to its end."""
    check_secrets(installation, "new", "old")
    rotate(installation)
    check_secrets(installation, "new")


# What servers do by themselves


def prepare_mirror(installation: Installation) -> None:
    """A mirror that is in step, and changes since: a table was renamed, one dropped, one made."""
    with installation.namespace() as namespace:
        for name in ("renamed", "dropped", "stays"):
            create_table(namespace, [name], 1)
        target = {"root": installation.root, "mode": "manifest"}
        namespace.call("CreatePublication", {"publication": "p", "kind": "dir", "settings": target, "namespace": []})
    sync_mirror(installation)
    with installation.namespace() as namespace:
        namespace.call("RenameTable", {"id": ["renamed"], "new_table_name": "new"})
        namespace.call("DropTable", {"id": ["dropped"]})
        create_table(namespace, ["made"], 1)


def sync_mirror(installation: Installation, begin: Begin = lambda: None) -> None:
    [(number,)] = installation.sql("SELECT id FROM publications")
    with installation.context() as ctx:
        begin()
        assert try_sync(ctx, number, lambda: False, verify=True)


def finish_mirror(installation: Installation) -> None:
    """The next sync brings the other catalog in step: each table once, by its name of now."""
    installation.expire_leases()
    sync_mirror(installation)
    assert installation.sql("SELECT error FROM publications") == [(None,)]
    target = open_catalog("dir", {"root": installation.root, "mode": "manifest"})
    with closing(target):
        found = {name: target.get_table(Id((name,))).location for name in target.list_tables(Id()).names}
    assert found == dict(installation.sql("SELECT name, location FROM tables"))
    assert set(found) == {"new", "stays", "made"}


BASE_IDS, UPSERTS = 300, 6


def prepare_upkeep(installation: Installation) -> None:
    """A table whose index lacks the rows of many small fragments."""
    with installation.namespace() as namespace:
        create_table(namespace, ["t"], *range(200))
        namespace.call("CreateTableScalarIndex", {"id": ["t"], "column": "id", "index_type": "BTREE"})
        work_off(namespace)
        for start in range(200, BASE_IDS, 5):
            insert(namespace, ["t"], *range(start, start + 5))


def maintain(installation: Installation, worker: Worker) -> None:
    """Look at the table and do what it needs."""
    for _ in range(3):
        installation.sql("UPDATE upkeep SET due_at = 0, rests_until = 0")
        worker.maintain_one()


def run_upkeep(installation: Installation, begin: Begin) -> None:
    """Upkeep, and beside it upserts of the same rows, each of which notes what was acknowledged."""
    notes = os.open(installation.folder / "acknowledged", os.O_WRONLY | os.O_CREAT)

    def upsert(namespace: tiltyard.Namespace) -> None:
        for number in range(1, UPSERTS + 1):
            new = pa.table({"id": pa.array([0, 150, 250, 1000], pa.int64()), "value": pa.array([number] * 4)})
            change = {"when_matched_update_all": True, "when_not_matched_insert_all": True}
            namespace.call("MergeInsertIntoTable", {"id": ["t"], "on": ["id"], **change}, stream(new))
            os.pwrite(notes, str(number).encode(), 0)

    with installation.namespace() as namespace:
        begin()
        with ThreadPoolExecutor(1) as thread:
            upserting = thread.submit(upsert, namespace)
            maintain(installation, Worker(namespace._services, 0))
            upserting.result()


def finish_upkeep(installation: Installation) -> None:
    """Each row is there once, with a value that is no older than the last one acknowledged; upkeep goes on."""
    acknowledged = int((installation.folder / "acknowledged").read_text() or 0)
    installation.expire_leases()
    with installation.namespace() as namespace:
        check_upserted(installation, namespace, acknowledged)
        worker = Worker(namespace._services, 0)
        for _ in range(5):
            maintain(installation, worker)
            installation.expire_leases()
        check_upserted(installation, namespace, acknowledged)
        [(location,)] = installation.sql("SELECT location FROM tables")
        dataset = lance.dataset(location)
        assert len(dataset.get_fragments()) <= 6, len(dataset.get_fragments())


def check_upserted(installation: Installation, namespace: tiltyard.Namespace, acknowledged: int) -> None:
    [(location,)] = installation.sql("SELECT location FROM tables")
    found = lance.dataset(location).to_table().to_pydict()
    values = dict(zip(found["id"], found["value"], strict=True))
    assert len(values) == len(found["id"]), "a row is there twice"
    assert set(values) - {1000} == set(range(BASE_IDS))
    seen = {values.get(key, 0) for key in (0, 150, 250, 1000)}
    assert len(seen) == 1 and seen.pop() in (acknowledged, acknowledged + 1), (seen, acknowledged)
    assert namespace.count_table_rows({"id": ["t"], "predicate": "id = 250"}).count == 1


SCHEDULES = ["daily", "hourly"]


def prepare_schedules(installation: Installation) -> None:
    """Two schedules that are due."""
    with installation.namespace() as namespace:
        create_table(namespace, ["t"], 1)
        for name in SCHEDULES:
            job = {"job": "optimize", "table": ["t"], "arguments": {"table": "t"}}
            namespace.call("CreateSchedule", {"id": [name], "cron": "0 3 1 1 *", "catch_up": True, **job})
    installation.sql("UPDATE schedules SET due_at = 1")


def queue_jobs(installation: Installation, begin: Begin = lambda: None) -> None:
    with installation.context() as ctx:
        begin()
        while queue_due_job(ctx):
            pass


def finish_schedules(installation: Installation) -> None:
    """The time that was due has one job of each schedule, and the next time is to come."""
    installation.expire_leases()
    queue_jobs(installation)
    jobs = installation.sql("SELECT run_key FROM transactions WHERE run_key LIKE 'schedule %'")
    assert len(jobs) == len(set(jobs)) == len(SCHEDULES), jobs
    assert installation.sql("SELECT COUNT(*) FROM schedules WHERE due_at > 1") == [(len(SCHEDULES),)]


OPERATIONS: dict[str, SweptOperation] = {
    "snapshot-create": SweptOperation(prepare_snapshots, create_snapshot, finish_created_snapshot),
    "snapshot-drop": SweptOperation(prepare_snapshots, drop_snapshot, finish_dropped_snapshot),
    "snapshot-restore": SweptOperation(prepare_snapshots, restore_snapshot, finish_restored_snapshot),
    "training-set": SweptOperation(prepare_training_set, make_training_set, finish_training_set),
    "import": SweptOperation(prepare_import, move_table(THEIRS, OURS), finish_move(THEIRS, OURS)),
    "export": SweptOperation(prepare_export, move_table(OURS, THEIRS), finish_move(OURS, THEIRS)),
    "mount-drop": SweptOperation(prepare_import, drop_mounted, finish_dropped_mounted),
    "mount-refresh": SweptOperation(prepare_mount_refresh, refresh_mount, finish_mount_refresh),
    "backup": SweptOperation(prepare_backup, take_backup, finish_backup),
    "backup-prune": SweptOperation(prepare_prune, prune_backups, finish_prune),
    "restore": SweptOperation(prepare_backup, restore_backup, finish_restore),
    "upgrade": SweptOperation(prepare_upgrade, upgrade, finish_upgrade, on_disk=True),
    "key-rotation": SweptOperation(prepare_rotation, rotate, finish_rotation),
    "mirror": SweptOperation(prepare_mirror, sync_mirror, finish_mirror, on_disk=True),
    "upkeep": SweptOperation(prepare_upkeep, run_upkeep, finish_upkeep),
    "schedules": SweptOperation(prepare_schedules, queue_jobs, finish_schedules),
    **REMOVALS,
    **EVENTS,
    **JOBS,
    **SPARK_JOBS,
}
