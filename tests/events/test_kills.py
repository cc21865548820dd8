"""Servers that are killed before they have noted what they sent: nothing is lost, and what comes twice has its id."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.events.receiver import Receiver, eventually, sinks_of
from tests.faults.conftest import Installation, installation, postgres  # noqa: F401 - fixtures
from tests.services.wire import Wire
from tiltyard.runtime.failpoints import Point


def test_server_killed_between_sending_and_noting_sends_again_with_the_same_id(
    installation: Installation,  # noqa: F811
) -> None:
    armed = Path(f"{installation.root}-armed")
    with Receiver() as receiver:
        environ = sinks_of(hook={"url": receiver.url})
        dying = installation.start(**environ, TILTYARD_FAULT=f"{Point.EVENT_SENT}@{armed}")
        with Wire(dying.url) as wire:
            wire.good(wire.namespace(["first"], "create"))
            eventually(lambda: installation.sql("SELECT 1 FROM event_sinks WHERE position = 1"), "the first one")
            armed.touch()
            with suppress(httpx.HTTPError):  # it may be killed before it answers, too
                wire.namespace(["second"], "create")
        eventually(lambda: dying.process.poll() is not None, "the server is killed")
        seen = [event["id"] for event in receiver.events]
        installation.sql("UPDATE event_sinks SET lease_until = 0")
        with Wire(installation.start(**environ).url) as wire:
            wire.good(wire.namespace(["third"], "create"))
        eventually(lambda: "third" in [event["subject"] for event in receiver.events], "the third one")
        subjects = [event["subject"] for event in receiver.events]
        ids = {event["id"]: event["subject"] for event in receiver.events}
        assert sorted(ids.values()) == ["first", "second", "third"], "none is lost, and each has one id"
        assert subjects[:2] == ["first", "second"] and {*seen} <= {*ids}


@pytest.mark.extended
def test_two_servers_that_change_one_object_tell_its_changes_in_their_order(
    installation: Installation,  # noqa: F811
) -> None:
    with Receiver() as receiver:
        environ = sinks_of(hook={"url": receiver.url, "types": ["namespace"]})
        servers = [installation.start(**environ) for _ in range(2)]

        def create_and_drop(url: str) -> None:
            with Wire(url) as wire:
                for _ in range(30):
                    wire.namespace(["busy"], "create")
                    wire.namespace(["busy"], "drop")

        threads = [threading.Thread(target=create_and_drop, args=(server.url,)) for server in servers * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with Wire(servers[0].url) as wire:
            wire.good(wire.namespace(["last"], "create"))
        eventually(lambda: "last" in [event["subject"] for event in receiver.events], "the last one")
        by_object: dict[int, list[str]] = {}
        for event in receiver.events:
            by_object.setdefault(event["data"]["object_id"], []).append(event["type"].split(".")[3])
        lives = [life for life in by_object.values() if life != ["created"]]
        assert len(by_object) > 30 and all(life == ["created", "dropped"] for life in lives), lives
        assert len({event["id"] for event in receiver.events}) == len(receiver.events)
