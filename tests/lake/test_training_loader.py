"""Loaders of training sets: each row once, in one order, by any number of ranks and workers, whatever is killed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

import tiltyard
from tests.services.server import ServerProcess
from tiltyard.functions import decode_image

ROWS = 6000
HERE = Path(__file__).parent
MIXED: dict[str, Any] = {"columns": "id", "batch_size": 32, "shuffle": 5, "buffer_bytes": 200_000}
"""Some rounds, and a rest."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("loaders"))
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def made(server: ServerProcess) -> tiltyard.lake.TrainingSet:
    """Return a set of rows of 200 bytes, in two fragments, some of which are deleted."""
    lake = tiltyard.connect(server.url)
    for start, count in ((0, 2000), (2000, ROWS - 2000)):
        ids = range(start, start + count)
        part = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "gap": pa.array([number if number % 9 else None for number in ids], pa.int32()),
                "text": [f"{number:0180d}" for number in ids],
                "vector": pa.array([[number, 1.0] for number in ids], pa.list_(pa.float32(), 2)),
                "even": [number % 2 == 0 for number in ids],
            }
        )
        lake.table("samples").ingest(part, mode="append" if start else "create")
    lake.table("samples").delete("id % 50 = 3")
    return lake.training_set("run", "samples", splits={"train": 0.8, "val": 0.2}, by="id", seed=1)


@pytest.fixture(scope="module")
def numbers(made: tiltyard.lake.TrainingSet) -> list[int]:
    """Return the ids of the split, in the order of the source."""
    ids: list[int] = made.to_arrow("train", ["id"])["id"].to_pylist()
    assert ids == sorted(ids) and 4500 < len(ids) < 4900
    return ids


def read(loader: Any, count: int | None = None) -> list[list[int]]:
    return [batch["id"].tolist() for batch in islice(loader, count)]


class Run:
    """A trainer in a process of its own, with its notes."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server, self.folder = server, folder

    def start(self, workers: int, hold: int = 0) -> subprocess.Popen[str]:
        request = {
            "url": self.server.url, "name": "run", "folder": str(self.folder), "workers": workers, "hold": hold,
            "options": {**MIXED, "format": "torch"},
        }  # fmt: skip
        path = os.pathsep.join([str(HERE.parent / "conformance/stand_in"), str(HERE.parents[1])])
        command = [sys.executable, str(HERE / "training_run.py"), json.dumps(request)]
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONPATH": path}, text=True
            )

    def end(self, process: subprocess.Popen[str], batches: int, *, kills_worker: bool = False) -> int:
        """Kill the trainer, or one of its workers, behind some batches; return how it ended."""
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            if told["batch"] == batches:
                os.kill(told["workers"][-1] if kills_worker else process.pid, signal.SIGKILL)
                break
        process.stdout.read()
        return process.wait()

    @property
    def batches(self) -> list[list[int]]:
        """The rows of all batches that the notes of where the run is count."""
        saved = json.loads((self.folder / "state").read_text())["batches"]
        return [json.loads(line) for line in (self.folder / "rows").read_text().splitlines()[:saved]]


def test_killed_runs_go_on_with_other_workers_and_have_each_row_once_in_one_order(
    server: ServerProcess, made: tiltyard.lake.TrainingSet, numbers: list[int], tmp_path: Path
) -> None:
    alone = read(made.loader(**MIXED))
    assert sorted(chain(*alone)) == numbers != list(chain(*alone))
    run = Run(server, tmp_path)
    passed = 0
    for workers, behind, kills_worker in ((4, 21, False), (2, 33, True)):
        process = run.start(workers, hold=0 if kills_worker else behind + 20)
        code = run.end(process, behind, kills_worker=kills_worker)
        assert code == (1 if kills_worker else -signal.SIGKILL), (tmp_path / "log").read_text()
        passed = passed + behind
        assert passed <= len(run.batches) < len(alone), "it was not killed in the middle"
        passed = len(run.batches)
        assert run.batches == alone[:passed]
    assert run.end(run.start(1), -1) == 0, (tmp_path / "log").read_text()
    assert run.batches == alone
    assert "exited unexpectedly" in (tmp_path / "log").read_text()  # the worker that was killed


def test_ranks_share_one_order_also_when_their_number_changes(
    made: tiltyard.lake.TrainingSet, numbers: list[int]
) -> None:
    alone = read(made.loader(**MIXED))
    for ranks in (2, 4):
        loaders = [made.loader(**MIXED, rank=rank, world_size=ranks) for rank in range(ranks)]
        shares = [read(loader) for loader in loaders]
        assert [alone[rank::ranks] for rank in range(ranks)] == shares
        assert [len(loader) for loader in loaders] == list(map(len, shares))
    pair = [made.loader(**MIXED, rank=rank, world_size=2) for rank in range(2)]
    before = [read(iter(loader), 11) for loader in pair]
    states = [loader.state_dict() for loader in pair]
    assert states[0] == states[1] == json.loads(json.dumps(states[0]))
    more = [made.loader(**MIXED, rank=rank, world_size=3, drop_last=True) for rank in range(3)]
    for loader in more:
        loader.load_state_dict(states[0])
    after = [read(loader) for loader in more]
    assert len({len(share) for share in after}) == 1  # each step has all ranks
    seen = list(chain(*chain(*before, *after)))
    assert sorted(seen) == sorted(chain(*alone[: 22 + 3 * len(after[0])])) and len(alone) - 22 - 3 * len(after[0]) <= 3


def test_epochs_differ_go_on_and_are_the_same_again(made: tiltyard.lake.TrainingSet, numbers: list[int]) -> None:
    loader = made.loader(**MIXED, epochs=2)
    both = read(loader)
    count = len(loader)
    first, second = both[:count], both[count:]
    assert sorted(chain(*first)) == sorted(chain(*second)) == numbers and first != second
    third = read(made.loader(**MIXED, epochs=None), 3 * count)[2 * count :]
    assert read(loader, count) == third  # an iteration goes on with later epochs
    again = made.loader(**MIXED)
    again.set_epoch(1)
    assert read(again) == second
    middle = made.loader(**MIXED, prefetch=0, epochs=2)
    taken = iter(middle)
    assert read(taken, count + 5) == both[: count + 5]
    state = middle.state_dict()
    assert (state["epoch"], state["passed"]) == (1, 5)
    assert read(middle, 3) == both[:3]  # without a state it begins anew
    middle.load_state_dict(state)
    assert read(middle) == second[5:]  # it ends where it would have
    with pytest.raises(InvalidInputError, match="would wait for ever"):
        made.loader(batch_size=5000, epochs=None, drop_last=True)
    resumed = made.loader(**MIXED, prefetch=9)
    resumed.load_state_dict(state)
    resumed = pickle.loads(pickle.dumps(resumed))  # as workers get it; of our own making
    assert read(resumed) == second[5:]
    other = made.loader(**{**MIXED, "shuffle": 6})
    with pytest.raises(InvalidInputError, match="state is of another run: its shuffle is 5, and here it is 6"):
        other.load_state_dict(state)
    assert sorted(chain(*read(other))) == numbers and read(other) != first
    plain = read(made.loader(columns="id", batch_size=1000, shuffle=None, drop_last=True))
    assert [len(batch) for batch in plain] == [1000] * 4 and list(chain(*plain)) == numbers[:4000]


def test_batches_are_arrays_and_files_that_are_too_many_to_count_are_read_alike(
    made: tiltyard.lake.TrainingSet, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = next(iter(made.loader(columns=["id", "text", "vector", "even"], batch_size=10)))
    assert {name: (array.dtype.kind, array.shape) for name, array in batch.items()} == {
        "id": ("i", (10,)), "text": ("O", (10,)), "vector": ("f", (10, 2)), "even": ("b", (10,))
    }  # fmt: skip
    assert batch["vector"][:, 0].tolist() == batch["id"].tolist() == numbers[:10]
    assert isinstance(next(iter(made.loader(format="arrow"))), pa.RecordBatch)
    with pytest.raises(InvalidInputError, match=r"'gap' has nulls.*take format='arrow'"):
        read(made.loader(columns=["id", "gap"]))
    with pytest.raises(ModuleNotFoundError, match="torch"):
        made.loader(format="torch")
    alone = read(made.loader(**MIXED))
    monkeypatch.setattr("tiltyard.lake.training.row_reader.MAX_NUMBERS_IN_MEMORY", 0)
    assert read(made.loader(**MIXED)) == alone


def test_images_in_blobs_are_decoded(server: ServerProcess, tmp_path: Path) -> None:
    from io import BytesIO

    from PIL import Image

    def picture(shade: int) -> bytes:
        held = BytesIO()
        Image.new("RGB", (8, 8), (shade, 0, 0)).save(held, "png")
        return held.getvalue()

    lake = tiltyard.connect(server.url)
    rows = pa.table({"id": list(range(40)), "image": [picture(number) for number in range(40)]})
    lake.table("pictures").ingest(rows, cast={"image": "blob"})
    made = lake.training_set("seen", "pictures", by="id", splits={"train": 0.5, "val": 0.5})
    decoded = {"image": decode_image(width=4, height=4)}
    loader = made.loader(batch_size=8, shuffle=1, decode=decoded)
    seen: dict[int, int] = {}
    for batch in loader:
        assert batch["image"].shape == (len(batch["id"]), 48) and batch["image"].dtype == np.uint8
        seen |= dict(zip(batch["id"].tolist(), batch["image"][:, 0].tolist(), strict=True))
    assert seen == {number: number for number in seen} and len(seen) == made.splits["train"]
    with pytest.raises(InvalidInputError, match=r"decode\['id'\]"):
        read(made.loader(decode={"id": decode_image(width=4, height=4)}))
    with pytest.raises(InvalidInputError, match=r"decode\['image'\] has returned 1 values for"):
        read(made.loader(decode={"image": lambda _: [1]}))
