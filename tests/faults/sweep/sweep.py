"""Kill an operation at its writes, one after the other."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from tests.faults.sweep.installation import BUCKET, Installation
from tests.faults.sweep.spark import SharedSpark
from tests.services.forked_process import run_tiltyard
from tests.services.postgres import PostgresServer
from tests.services.s3 import CREDENTIALS, S3Server

MODULE = "tests.faults.sweep.process"
HERE = Path(__file__).parent


@dataclass
class Sweep:
    """What came out: the places of the kills, as `failpoints` writes them, and what did not hold after which."""

    name: str
    writes: list[str] = field(default_factory=list)
    """Those of a run without a kill."""
    kills: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        places = len(set(self.kills))
        return f"{self.name}: {len(self.writes)} writes, {len(self.kills)} kills at {places} places, " + (
            f"{len(self.complaints)} complaints" if self.complaints else "all held"
        )


Choice = Callable[[Sequence[str]], Iterable[int]]
"""Which of an operation's writes it is killed at, by their numbers."""


def thinned(every: int) -> Choice:
    """Return the choice of each N-th write; of all, and of the end after them, for 1."""
    return lambda writes: range(every - 1, len(writes) + 1, every)


def of_commit(names: Iterable[str], count: int) -> list[str]:
    """Return some names, for each commit others: of a test that would take too long for all of them in each run."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, check=False).stdout
    return sorted(names, key=lambda name: crc32(name.encode() + commit))[:count]


class Servers:
    """Where the state of sweeps is: in their folders, or the catalog in a PostgreSQL, and tables on an object store."""

    def __init__(self, postgres: PostgresServer | None = None, objects: S3Server | None = None) -> None:
        self._postgres = postgres
        self._objects = objects

    def new_url(self, folder: Path) -> str:
        return f"sqlite:///{folder}/catalog.db" if self._postgres is None else self._postgres.new_database()

    @contextmanager
    def copy_database(self, url: str) -> Iterator[str]:
        """Yield a database like another one: in PostgreSQL a copy, else what the folder has."""
        if self._postgres is None:
            yield url
            return
        copied = self._postgres.copy_database(url)
        try:
            yield copied
        finally:
            self._postgres.drop_database(copied)

    def new_bucket(self, name: str) -> Mapping[str, str]:
        """Make a bucket, and one to save it in; return the variables of processes whose tables are there."""
        if self._objects is None:
            return {}
        for bucket in (name, f"{name}-saved"):
            self._objects.new_bucket(bucket)
        options = json.dumps(self._objects.options)
        places = {"AWS_ENDPOINT": self._objects.endpoint, "AWS_ALLOW_HTTP": "true", BUCKET: name}
        return {**CREDENTIALS, **places, "TILTYARD_STORAGE_OPTIONS": options}

    def save_bucket(self, name: str) -> None:
        if self._objects is not None:
            self._objects.copy_bucket(name, f"{name}-saved")

    def put_back_bucket(self, name: str) -> None:
        if self._objects is not None:
            self._objects.copy_bucket(f"{name}-saved", name)


def sweep(
    name: str,
    folder: Path,
    servers: Servers,
    choose: Choice,
    spark: SharedSpark | None = None,
) -> Sweep:
    """Kill an operation at its writes, and finish it after each kill. `folder` is a new one.

    Jobs on Spark need `spark`.
    """
    done, work, saved = Sweep(name), folder / "work", folder / "saved"
    environ = {**servers.new_bucket(name), **({} if spark is None else spark.environ)}
    work.mkdir(parents=True)
    url = servers.new_url(work)
    _run(name, "prepare", work, url, environ)
    Installation(work, url).save(saved)
    servers.save_bucket(name)
    with servers.copy_database(url) as copied:
        _run(name, "run", work, copied, environ)
        done.writes = (folder / "work.armed").read_text().splitlines()
        _finish(done, work, copied, "no kill", environ)
    for number in choose(done.writes):
        Installation(work, url).put_back(saved)
        servers.put_back_bucket(name)
        with servers.copy_database(url) as copied:
            place = _kill(name, work, copied, number, environ)
            done.kills.append(place)
            _finish(done, work, copied, f"a kill at write {number}, {place}", environ)
        if spark is not None:
            spark.stop_tasks()
    return done


def _run(name: str, step: str, folder: Path, url: str, environ: Mapping[str, str]) -> None:
    done = run_tiltyard(name, step, str(folder), url, module=MODULE, starter="sweeps", **environ)
    if done.returncode:
        raise RuntimeError(f"{step} of {name} has failed: {done.stderr[-4000:]}")


def _kill(name: str, folder: Path, url: str, number: int, environ: Mapping[str, str]) -> str:
    """Run an operation until it is killed; return where that was."""
    armed, reached = Path(f"{folder}.armed"), Path(f"{folder}.armed.reached")
    reached.unlink(missing_ok=True)
    done = run_tiltyard(name, "run", str(folder), url, str(number), module=MODULE, starter="sweeps", **environ)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{name} was not killed at write {number}: {done.stderr[-4000:]}")
    if armed.exists():
        armed.unlink()
        return "the end"
    return reached.read_text()


def _finish(done: Sweep, folder: Path, url: str, when: str, environ: Mapping[str, str]) -> None:
    ended = run_tiltyard(done.name, "finish", str(folder), url, module=MODULE, starter="sweeps", **environ)
    if ended.returncode:
        done.complaints.append(f"after {when}:\n{ended.stderr[-3000:]}")
