"""Servers under faults: an order of all calls explains all answers, object by object, and publications are isolated."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.histories.anomalies import Outcome, Transaction
from tests.histories.clients import Client, Objects, settle_rights
from tests.histories.conftest import NEEDS_GO, Installed
from tests.histories.disturbances import Disturber
from tests.histories.history import ILLEGAL, OK, Call, History, judge
from tests.histories.publications import FAILED, Lists, judge_publications
from tests.services.secured import Secured
from tiltyard.catalog.table_servers import KEEPERS
from tiltyard.publishing import Isolation

pytestmark = [pytest.mark.extended, NEEDS_GO]
CLIENTS = 6
PUBLISHERS = 4
SECONDS = float(os.environ.get("HISTORY_SECONDS", "3"))
MAX_ROUND_SECONDS = 20.0
"""A longer run has several histories, a test each: what porcupine looks through grows fast."""
ROUNDS = max(1, round(SECONDS / MAX_ROUND_SECONDS))
ROUND_SECONDS = SECONDS / ROUNDS
KINDS = {"rows", "keyed", "name", "tag", "versions", "grant", "key"}

Published: TypeAlias = "Mapping[str, list[Transaction]]"
log = logging.getLogger(__name__)


@pytest.mark.timeout(300 + 3 * ROUND_SECONDS)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_servers_under_faults_answer_as_one_and_isolate_publications(
    installed: Installed, checker: Path, number: int
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    made = Objects(f"r{number}")
    lists = [_lists(made, isolation, installed) for isolation in Isolation]
    published, final = _run_clients(installed, made, lists, seed)
    _check_order(checker, made.history, seed)
    assert bool(made.history.forwarded) is installed.shares
    for each in lists:
        outcomes = Counter(entry.outcome.value for entry in published[each.isolation] if entry.appends)
        log.info("%s: %s", each.isolation, dict(outcomes))
        wrong = judge_publications(each, published[each.isolation], final[each.isolation])
        assert not wrong, f"seed {seed}, {each.isolation}: {dict(wrong)}"


def _lists(made: Objects, isolation: str, installed: Installed) -> Lists:
    names = [[made.namespace, f"{isolation}{number}"] for number in range(3)]
    return Lists(names, isolation, {"x-api-key": installed.keys["administrator"]})


def _run_clients(
    installed: Installed, made: Objects, every: Sequence[Lists], seed: int
) -> tuple[Published, Mapping[str, Mapping[str, Sequence[int]]]]:
    """Let clients call and publish under faults; return what was published, and the lists in the end."""
    ended, published = threading.Event(), {lists.isolation: list[Transaction]() for lists in every}
    runs = cycle([Secured(server, installed.keys) for server in installed.servers])
    with ExitStack() as stack, ThreadPoolExecutor(CLIENTS + PUBLISHERS) as threads:
        made.make(stack.enter_context(next(runs).http("administrator")))
        clients = [
            stack.enter_context(closing(Client(number, next(runs), made))) for number in range(CLIENTS + PUBLISHERS)
        ]
        for lists in every:
            lists.make(clients[0].rest)
        if installed.shares:
            _wait_until_shared(clients)
        stack.callback(ended.set)
        working = [threads.submit(_call, client, ended, seed) for client in clients[:CLIENTS]]
        working += [threads.submit(_publish, client, every, published, ended, seed) for client in clients[CLIENTS:]]
        Disturber(installed.servers, installed.storage).disturb(random.Random(seed), ROUND_SECONDS)
        ended.set()
        for each in working:
            each.result()
        return published, {lists.isolation: _read_in_the_end(lists, clients[0]) for lists in every}


def _wait_until_shared(clients: Sequence[Client]) -> None:
    """Wait until all servers know each other. Raises TimeoutError."""
    until = time.monotonic() + 60
    while len(known := {client.keepers_of("rows0") for client in clients}) > 1 or len(min(known)) < KEEPERS:
        if time.monotonic() > until:
            raise TimeoutError(f"The servers do not share out tables: {known}")
        time.sleep(0.2)


def _check_order(checker: Path, history: History, seed: int) -> None:
    """Check that porcupine finds an order for each object."""
    calls = settle_rights(history.calls)
    verdicts = judge(checker, calls)
    kinds = Counter(f"{_kind(name)} {verdict}" for name, verdict in verdicts.items())
    counts = len(history.calls), history.unknown, history.forwarded
    log.info("%d calls, %d of unknown outcome, %d forwarded: %s", *counts, dict(sorted(kinds.items())))
    wrong = [call for call in calls if verdicts[call.object] == ILLEGAL]
    assert not wrong, f"seed {seed}, {len(calls)} calls: " + "\n".join(map(str, sorted(wrong, key=_beginning)))
    # One with too many calls of unknown outcome may take longer than the checker has: that says nothing.
    assert list(verdicts.values()).count(OK) >= 0.7 * len(verdicts), verdicts
    assert {_kind(name) for name in verdicts} == KINDS, kinds


def _beginning(call: Call) -> int:
    return call.begin


def _kind(name: str) -> str:
    return name.split(maxsplit=1)[0].rstrip("0123456789")


def _call(client: Client, ended: threading.Event, seed: int) -> None:
    source = random.Random(seed + client.number)
    while not ended.is_set():
        for _ in client.call_each(source):
            time.sleep(source.uniform(0, 0.02))


def _publish(client: Client, every: Sequence[Lists], published: Published, ended: threading.Event, seed: int) -> None:
    source = random.Random(seed + client.number)
    while not (ended.is_set() and all(map(_is_published, published.values()))):
        lists = source.choice(every)
        if source.random() < 0.6:
            published[lists.isolation].append(lists.publish(client.rest, source))
        else:
            published[lists.isolation].extend(lists.read_in_turn(client.rest, source))


def _is_published(history: Sequence[Transaction]) -> bool:
    return any(entry.outcome is Outcome.PUBLISHED and entry.appends for entry in history)


def _read_in_the_end(lists: Lists, client: Client) -> Mapping[str, Sequence[int]]:
    """Read lists as soon as servers that were killed answer. Raises what they raise after a minute."""
    until = time.monotonic() + 60
    while True:
        try:
            return lists.read_all(client.rest)
        except FAILED:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
