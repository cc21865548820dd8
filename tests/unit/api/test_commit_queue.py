"""Clients that commit to one table take turns: which ones wait, for how long, and which do not."""

from __future__ import annotations

import asyncio
import functools
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import ConcurrentModificationError, PermissionDeniedError

from tiltyard.api.execution import commit_queue
from tiltyard.api.execution.commit_queue import CommitQueues, Peer
from tiltyard.model.spec import models
from tiltyard.storage.locks import Locks

ANN, BOB, CLEO = ("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 1)
LONG = 100.0


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own locks: two tables in a thousand share one, and a test may end within a turn."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let turns last until a commit comes."""
    monkeypatch.setattr(commit_queue, "TURN_SECONDS", LONG)
    monkeypatch.setattr(commit_queue, "PATIENCE_SECONDS", LONG)


class Table:
    """A table under its own name, and the clients of one server process that read it, in order."""

    def __init__(self, turns: CommitQueues, name: str | None = None) -> None:
        self.turns = turns
        self.name = name or uuid.uuid4().hex
        self.order: list[Peer] = []

    async def latest(self, peer: Peer) -> None:
        """Read the latest version."""
        request = models.ListTableVersionsRequest(id=[self.name], limit=1, descending=True)

        await self.turns.wait_for_turn(request, peer)
        self.order.append(peer)

    async def commit(self, peer: Peer, *, error: Exception | None = None) -> None:
        """Send a commit, which wins, or fails with the error."""
        request = models.CreateTableVersionRequest(id=[self.name], version=2, manifest_path="any")

        async def answer() -> None:
            if error is not None:
                raise error

        await self.turns.run_commit(request, peer, answer)

    async def lose(self, *peers: Peer) -> None:
        """Let each client lose a commit."""
        for peer in peers:
            with pytest.raises(ConcurrentModificationError):
                await self.commit(peer, error=ConcurrentModificationError("Version 2 exists."))


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on its own event loop, for a minute at most."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def within() -> None:
            await asyncio.wait_for(test(*arguments, **named), 60)

        asyncio.run(within())

    return run


async def rest() -> None:
    """Let every task run that can."""
    for _ in range(20):
        await asyncio.sleep(0.001)


@asynchronous
async def test_read_of_the_latest_version_without_lost_commits_waits_for_no_turn() -> None:
    table = Table(CommitQueues(Locks()))
    for peer in (ANN, BOB):
        await table.commit(peer)
    await asyncio.gather(*(table.latest(peer) for peer in (ANN, BOB, ANN)))


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_read_of_the_latest_version_after_a_lost_commit_waits_for_the_commit_before() -> None:
    table = Table(CommitQueues(Locks()))
    await table.lose(ANN, BOB, CLEO)
    await table.latest(ANN)
    others = [asyncio.ensure_future(table.latest(peer)) for peer in (BOB, CLEO)]
    await rest()
    assert table.order == [ANN]
    await table.latest(ANN)  # who has the turn may ask again
    await table.commit(ANN)
    await others[0]
    await rest()
    assert table.order == [ANN, ANN, BOB]
    await table.lose(BOB)  # somebody without a turn was quicker
    await others[1]


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_read_of_a_client_that_has_not_committed_and_of_another_table_waits_for_no_turn() -> None:
    table = Table(shared := CommitQueues(Locks()))
    await table.lose(ANN, BOB)
    await table.latest(ANN)
    await table.latest(CLEO)
    await Table(shared).latest(BOB)


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_client_whose_commit_is_refused_is_no_writer_and_has_no_turns() -> None:
    table = Table(CommitQueues(Locks()))
    await table.lose(ANN, BOB)
    with pytest.raises(PermissionDeniedError):
        await table.commit(CLEO, error=PermissionDeniedError("No."))
    await table.latest(CLEO)  # which takes no turn: else the next one would wait
    await table.latest(ANN)


@asynchronous
async def test_turn_without_a_commit_times_out_and_its_client_is_no_writer_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_queue, "PATIENCE_SECONDS", LONG)

    table = Table(CommitQueues(Locks()))
    await table.lose(ANN, BOB)
    await table.latest(ANN)
    await table.latest(BOB)
    monkeypatch.setattr(commit_queue, "TURN_SECONDS", LONG)
    await table.latest(ANN)  # a reader by now
    await table.commit(BOB)


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_turns_of_two_processes_wait_for_each_other() -> None:
    first = Table(CommitQueues(Locks()))
    second = Table(CommitQueues(Locks()), first.name)
    await first.lose(ANN)
    await second.lose(BOB)
    await first.latest(ANN)
    other = asyncio.ensure_future(second.latest(BOB))
    await rest()
    assert second.order == []
    await first.commit(ANN)
    await other


@asynchronous
async def test_client_waits_for_its_turn_no_longer_than_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "TURN_SECONDS", LONG)
    monkeypatch.setattr(commit_queue, "PATIENCE_SECONDS", 0.05)

    table = Table(CommitQueues(Locks()))
    await table.lose(ANN, BOB)
    await table.latest(ANN)
    await table.latest(BOB)


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_client_that_leaves_while_it_waits_takes_no_turn() -> None:
    table = Table(CommitQueues(Locks()))
    await table.lose(ANN, BOB, CLEO)
    await table.latest(ANN)
    leaver, other = (asyncio.ensure_future(table.latest(peer)) for peer in (BOB, CLEO))
    await rest()
    leaver.cancel()
    await table.commit(ANN)
    await other
    assert table.order == [ANN, CLEO] and leaver.cancelled()


@asynchronous
async def test_queue_is_dropped_once_no_client_loses_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "CONTENDED_SECONDS", 0.0)

    queues = CommitQueues(Locks())
    table = Table(queues)
    await table.lose(ANN)
    await asyncio.sleep(0.002)
    await table.commit(ANN)
    assert not queues._tables


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_client_that_has_lost_commits_before_others_get_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "RETURN_SECONDS", LONG)
    monkeypatch.setattr(commit_queue, "MAX_RETURN_SECONDS", LONG)

    table = Table(CommitQueues(Locks()))
    await table.lose(ANN, BOB)
    waiting = asyncio.ensure_future(table.latest(ANN))
    await rest()
    assert table.order == []
    await table.commit(BOB)
    await waiting


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_client_that_has_lost_and_leaves_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "MAX_RETURN_SECONDS", 0.05)

    table = Table(CommitQueues(Locks()))
    await table.lose(ANN, *[BOB] * 10)
    await table.latest(ANN)


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_client_that_has_lost_is_waited_for_by_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "RETURN_SECONDS", LONG)
    monkeypatch.setattr(commit_queue, "MAX_RETURN_SECONDS", LONG)
    first = Table(CommitQueues(Locks()))
    second = Table(CommitQueues(Locks()), first.name)
    await first.lose(ANN)
    await rest()
    await second.lose(BOB)
    await second.commit(BOB)
    waiting = asyncio.ensure_future(second.latest(BOB))
    await rest()
    assert second.order == []
    await first.commit(ANN)
    await waiting


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_client_that_has_lost_and_reads_again_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "RETURN_SECONDS", LONG)
    monkeypatch.setattr(commit_queue, "MAX_RETURN_SECONDS", LONG)
    table = Table(CommitQueues(Locks()))
    await table.lose(ANN)
    await table.latest(ANN)


@asynchronous
@pytest.mark.usefixtures("lasting")
async def test_turns_go_from_process_to_process_after_each_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "SERIES_SECONDS", 0.0)
    monkeypatch.setattr(commit_queue, "REST_SECONDS", 1.0)
    first = Table(CommitQueues(Locks()))
    second = Table(CommitQueues(Locks()), first.name)
    second.order = first.order
    await first.lose(ANN, CLEO)
    await second.lose(BOB)
    await first.latest(ANN)
    others = [asyncio.ensure_future(table.latest(peer)) for table, peer in ((second, BOB), (first, CLEO))]
    await rest()
    await first.commit(ANN)
    await others[0]
    await rest()
    assert first.order == [ANN, BOB], "the turns are the other process's, though somebody waits here"
    await second.commit(BOB)
    await others[1]
    assert first.order == [ANN, BOB, CLEO]


def test_turns_that_come_once_the_server_has_stopped_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "PATIENCE_SECONDS", 0.01)
    table = Table(CommitQueues(Locks()))
    lock = f"turn {((table.name,), '')}"
    others = Locks().try_acquire(lock)
    assert others is not None

    async def serve() -> None:
        await table.lose(ANN)
        await table.latest(ANN)

    asyncio.run(serve())
    others.release()
    until = time.monotonic() + 10
    while (acquired := Locks().try_acquire(lock)) is None and time.monotonic() < until:
        time.sleep(0.01)
    assert acquired is not None
    acquired.release()
