"""A disk that is full for moments under eight writers: what was answered is there, and tables stay readable."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.faults.conftest import Installation
from tests.services.wire import Wire, stream

pytestmark = pytest.mark.extended

TABLES, WRITERS, ROUNDS = 4, 8, 4
PAGE = 4096
KINDS = ("insert", "insert", "merge", "update", "delete")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    mount = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if mount.returncode != 0:
        pytest.skip(f"needs the right to mount: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def rows(ids: list[int]) -> pa.Table:
    """Rows of more than a page: some are cut in the middle."""
    return pa.table({"id": pa.array(ids, pa.int64()), "value": [0] * len(ids), "text": ["x" * 2000] * len(ids)})


class Writers:
    """Writers of all kinds, and what was answered to them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._next = 0
        self._done = threading.Event()
        self.states: list[dict[int, str]] = [{} for _ in range(TABLES)]
        """Of each table: ids of rows that are there, are deleted, or of which that is unknown."""
        self.statuses: Counter[tuple[str, int]] = Counter()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        dice = random.Random(number)
        with Wire(self._url) as wire:
            while not self._done.is_set():
                self._write_once(wire, dice, number, dice.randrange(TABLES), dice.choice(KINDS))

    def _write_once(self, wire: Wire, dice: random.Random, number: int, table: int, kind: str) -> None:
        with self._lock:
            ids = list(range(self._next, self._next + 3))
            self._next += 3
            states = self.states[table]
            own = [id_ for id_, state in states.items() if state == "there" and id_ % WRITERS == number][:2]
        path = f"/v1/table/t{table}"
        if kind == "insert":
            response = wire.http.post(f"{path}/insert", content=stream(rows(ids)))
        elif kind == "merge":
            upsert = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
            response = wire.http.post(f"{path}/merge_insert?{upsert}", content=stream(rows(ids)))
        elif kind == "update":
            change = {"predicate": f"id % 7 = {dice.randrange(7)}", "updates": [["value", "value + 1"]]}
            response = wire.http.post(f"{path}/update", json=change)
        elif own:
            ids = own
            with self._lock:
                states.update(dict.fromkeys(own, "unknown"))
            listed = ", ".join(map(str, own))
            response = wire.http.post(f"{path}/delete", json={"predicate": f"id IN ({listed})"})
        else:
            return
        with self._lock:
            self.statuses[kind, response.status_code] += 1
            if response.status_code == 200 and kind != "update":
                states.update(dict.fromkeys(ids, "gone" if kind == "delete" else "there"))


def fill_for_a_moment(disk: Path, dice: random.Random) -> None:
    """Fill a disk, and leave it a few pages now and then: files that need more are cut short."""
    end = time.monotonic() + dice.uniform(0.5, 2)
    file = disk / "filler"
    with file.open("wb", buffering=0) as filler:
        while time.monotonic() < end:
            with suppress(OSError):
                while filler.write(bytes(64 * 1024)) == 64 * 1024:
                    pass
            with suppress(OSError):
                while filler.write(bytes(PAGE)) == PAGE:
                    pass
            time.sleep(dice.uniform(0, 0.01))
            size = max(filler.tell() - PAGE * dice.randrange(1, 6), 0)
            filler.truncate(size)
            filler.seek(size)
            time.sleep(dice.uniform(0, 0.004))
    file.unlink()


def test_disk_that_is_full_for_moments_loses_nothing_and_breaks_no_table(disk: Path, tmp_path: Path) -> None:
    installation, dice = Installation(disk / "root", f"sqlite:///{tmp_path / 'catalog.db'}"), random.Random(43)
    try:
        server = installation.start()
        with Wire(server.url) as wire:
            for table in range(TABLES):
                wire.good(wire.table([f"t{table}"], "create", stream(rows([-1]))))
            writers = Writers(server.url)
            for _ in range(ROUNDS):
                time.sleep(1)
                fill_for_a_moment(disk, dice)
            writers.stop()
            assert {status for _, status in writers.statuses} <= {200, 409, 503}, writers.statuses
            assert sum(count for (_, status), count in writers.statuses.items() if status == 503) > 0
            for table, states in enumerate(writers.states):
                _check_table(wire, f"t{table}", states)
    finally:
        installation.close()


def _check_table(wire: Wire, name: str, states: dict[int, str]) -> None:
    location = wire.good(wire.table([name], "describe", {}))["location"]
    ids = lance.dataset(location).to_table()["id"].to_pylist()
    assert len(ids) == len(set(ids)), "a row is there twice"
    there, gone = ({id_ for id_, state in states.items() if state == each} for each in ("there", "gone"))
    assert there <= set(ids) and not gone & set(ids)
    wire.good(wire.table([name], "insert", stream(rows([10**9]))))
    for operation, body in (("delete", {"predicate": "id = 1000000000"}), ("update", {"updates": [["value", "7"]]})):
        wire.good(wire.table([name], operation, body))
