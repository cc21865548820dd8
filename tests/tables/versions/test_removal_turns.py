"""What comes to refer to old versions while they are removed: it is refused, or its version stays."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import ConcurrentModificationError, TableVersionNotFoundError
from tests.tables.served import Server, ask

from tiltyard.model.spec import models
from tiltyard.runtime.lease import LEASE_MS
from tiltyard.tables.upkeep.garbage import CollectOptions, collect
from tiltyard.tables.versions.branches import create_table_branch
from tiltyard.tables.versions.clone import clone_table
from tiltyard.tables.versions.removal_turns import OLD_VERSIONS
from tiltyard.tables.versions.tags import create_table_tag, list_table_tags, update_table_tag

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = 150


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path, gc_safety_days=0.0, conflict_timeout=20.0)
    running.create("t", pa.table({"n": [0]}))
    location = running.open("t").uri
    for number in range(1, VERSIONS):
        lance.write_dataset(pa.table({"n": [number]}), location, mode="overwrite")
    yield running
    running.services.close()


def tag(server: Server, name: str, version: int) -> Any:
    return create_table_tag(server.ctx, ask(models.CreateTableTagRequest, id="t", tag=name, version=version))


def branch(server: Server, name: str, version: int) -> Any:
    request = ask(models.CreateTableBranchRequest, id="t", name=name, from_version=version)
    return create_table_branch(server.ctx, request)


def move(server: Server, name: str, version: int) -> Any:
    return update_table_tag(server.ctx, ask(models.UpdateTableTagRequest, id="t", tag=name, version=version))


def test_what_was_tagged_or_branched_while_versions_are_removed_can_be_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    removes, made = threading.Event(), list[tuple[str, int]]()
    cleanup = lance.LanceDataset.cleanup_old_versions

    def remove(*args: Any, **options: Any) -> Any:
        removes.set()
        return cleanup(*args, **options)

    monkeypatch.setattr(lance.LanceDataset, "cleanup_old_versions", remove)

    def refer() -> None:
        removes.wait(30)
        for version in range(VERSIONS - 1, 0, -4):  # the last ones that are removed first
            make = branch if version % 3 == 0 else move if version % 3 == 1 and made else tag
            name = made[0][0] if make is move else f"v{version}"
            try:
                make(server, name, version)
            except TableVersionNotFoundError:
                continue
            if make is move:
                made[0] = (name, version)
            else:
                made.append((name, version))

    with ThreadPoolExecutor(2) as pool:
        referring = pool.submit(refer)
        collection = collect(server.ctx, server.services.store.describe_table(("t",)), CollectOptions(False, 0.0))
        referring.result(60)
    assert collection.versions > VERSIONS / 2, "there was nothing to lose"
    dataset = server.open("t")
    assert set(dataset.tags.list()) | set(dataset.branches.list()) == {name for name, _ in made}
    for name, version in made:
        kept = dataset.checkout_version((name, None) if name in dataset.branches.list() else name)
        assert kept.to_table()["n"].to_pylist() == [version - 1], name


def test_a_removal_by_another_server_is_waited_for_and_so_is_a_clone(server: Server) -> None:
    store, record = server.services.store, server.services.store.describe_table(("t",))
    location = record.location
    assert store.claim_turn(record.id, OLD_VERSIONS, "removal elsewhere", LEASE_MS) is not None
    with ThreadPoolExecutor(3) as pool:
        cloning = pool.submit(
            clone_table,
            server.ctx,
            ask(models.CloneTableRequest, id="copy", source_location=location, source_version=3),
        )
        tagging, branching = pool.submit(tag, server, "kept", 7), pool.submit(branch, server, "lost", 5)
        while "kept" not in server.open("t").tags.list() or "lost" not in server.open("t").branches.list():
            assert not tagging.done() and not branching.done() and not cloning.done()
        # The other server had looked at tags and branches before, and removes what it has found unused.
        server.services.storage.delete_files([f"{location}/_versions/{manifest(location, 5)}"])
        assert not tagging.done() and not branching.done() and not cloning.done()
        store.end_turn(record.id, OLD_VERSIONS, "removal elsewhere")
        tagging.result(30)
        assert cloning.result(30).version is not None
        with pytest.raises(TableVersionNotFoundError, match="cleaned up"):
            branching.result(30)
    assert "lost" not in server.open("t").branches.list()
    assert store.turn_holder(record.id, OLD_VERSIONS) is None, "the clone has left its turn"


def test_turns_that_do_not_end_are_an_error_and_leave_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path, gc_safety_days=0.0, conflict_timeout=0.2)
    location = server.create("t", pa.table({"n": [0]})).uri
    store, record = server.services.store, server.services.store.describe_table(("t",))
    tag(server, "early", 1)
    lance.write_dataset(pa.table({"n": [1]}), location, mode="overwrite")
    lance.write_dataset(pa.table({"n": [2]}), location, mode="overwrite")
    store.claim_turn(record.id, OLD_VERSIONS, "removal elsewhere", LEASE_MS)
    request = ask(models.CloneTableRequest, id="copy", source_location=location)
    for call in (
        lambda: tag(server, "late", 1),
        lambda: move(server, "early", 1),
        lambda: branch(server, "late", 1),
        lambda: clone_table(server.ctx, request),
        lambda: collect(server.ctx, record, CollectOptions(False, 0.0)),
    ):
        with pytest.raises(ConcurrentModificationError, match="try again"):
            call()
    dataset = server.open("t")
    assert list(dataset.tags.list()) == ["early"] and not dataset.branches.list() and dataset.version == 3
    store.end_turn(record.id, OLD_VERSIONS, "removal elsewhere")
    store.claim_turn(record.id, OLD_VERSIONS, "clone elsewhere", LEASE_MS)
    tag(server, "late", 1)  # a clone removes nothing
    server.services.close()


def manifest(location: str, version: int) -> str:
    """Return the name of a version's manifest."""
    return next(path.name for path in Path(location, "_versions").iterdir() if is_of(path.name, version))


def is_of(name: str, version: int) -> bool:
    number = name.removesuffix(".manifest")
    return number.isdigit() and int(number) in (version, 2**64 - 1 - version)


def test_tags_and_branches_are_listed_while_others_come_and_go(server: Server) -> None:
    tag(server, "stays", 1)
    ended = threading.Event()

    def churn() -> None:
        dataset = server.open("t")
        while not ended.is_set():
            dataset.tags.create("goes", 1)
            dataset.tags.delete("goes")

    with ThreadPoolExecutor(1) as pool:
        churning = pool.submit(churn)
        try:
            for _ in range(300):
                listed = list_table_tags(server.ctx, ask(models.ListTableTagsRequest, id="t"))
                assert set(listed.tags) in ({"stays"}, {"stays", "goes"})
        finally:
            ended.set()
        churning.result()
