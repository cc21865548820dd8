"""Run a server under every kind of load without faults, and judge whether what it takes stays within bounds.

Retention is shortened to a tenth of the run, so that what is removed by age is removed within it.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.soak.load import KEYS, Load, Target, make_rows
from tests.faults.soak.samples import Place, Sample, take_sample, write_samples
from tests.faults.soak.verdict import HEAD, Judgement, Limit, judge
from tests.services.certificates import loopback_certificate
from tests.services.secured import secured_server

TABLES = 24
MIN_VERSIONS_SECONDS = 90
"""About the least that `keep_versions_days` may be."""
SKEW_SECONDS = 600
"""How much longer versions and files stay, for clocks that differ."""
RETENTION_SHARE = 1 / 10
FACTS_SECONDS = 1500
"""Until facts of versions and files, which are objects of Python, fill their cache."""
CACHE_BYTES = 32 << 20
"""Of each cache, unless the run is with the server's own bounds: so that they are full within minutes."""


@dataclass(frozen=True, slots=True)
class EndurancePlan:
    """How long a run is, and how often it is sampled; with `own_caches` the bounds of caches are the server's own, with
    `spark` jobs of the pipeline run by a schedule."""

    seconds: float
    seed: int
    every: float = 10.0
    own_caches: bool = False
    spark: bool = False

    @property
    def retention(self) -> float:
        """Seconds for which the server keeps what it keeps for a time."""
        return max(self.seconds * RETENTION_SHARE, 5.0)

    @property
    def settings(self) -> dict[str, str]:
        """The server's settings, as variables."""
        days = self.retention / 86400
        caches = ("INDEX", "METADATA", "PAGE", "VECTOR")
        return {
            "TILTYARD_UPKEEP": "true",
            "TILTYARD_AUDIT": "all",
            "TILTYARD_AUDIT_DAYS": f"{days:.6f}",
            "TILTYARD_TRANSACTION_DAYS": f"{days:.6f}",
            "TILTYARD_RETENTION_DAYS": f"{days:.6f}",
            "TILTYARD_GC_SAFETY_DAYS": f"{days:.6f}",
            "TILTYARD_REPEAT_MEMORY": str(int(self.retention)),
            "TILTYARD_KEEP_VERSIONS_DAYS": f"{max(days, MIN_VERSIONS_SECONDS / 86400):.6f}",
            **({"TILTYARD_SPARK": "local[1]"} if self.spark else {}),
            **({} if self.own_caches else {f"TILTYARD_{cache}_CACHE_BYTES": str(CACHE_BYTES) for cache in caches}),
        }

    @property
    def limits(self) -> Sequence[Limit]:
        """What the run is judged by."""
        kept = max(self.retention, MIN_VERSIONS_SECONDS)  # and as long between two looks for older versions
        versions = 3 * kept + SKEW_SECONDS
        removed = self.retention + 120  # and the sweep of each minute
        return (
            # What a request takes rises for a while with the versions of its table, until old ones go. A leak is in
            # what the allocator has given out, or in Python's objects. A process that is never idle keeps freed memory
            # besides, up to `KEEP_BYTES` of `server/memory`, which comes and goes with the load.
            Limit("server.given out beyond caches MiB", growth=16, most=400, settles=versions),
            Limit("server.thousand blocks of Python", growth=60, most=3_000, settles=max(versions, FACTS_SECONDS)),
            Limit("server.beyond caches MiB", most=700),
            Limit("server.anonymous MiB", growth=256 if self.own_caches else 32, settles=versions),
            Limit("children.anonymous MiB", growth=32, most=2_000, settles=300),
            Limit("*.?ss MiB"),
            Limit("*.descriptors", growth=8, share=0.15, most=2_000, settles=60),
            Limit("*.threads", growth=8, share=0.05, most=1_000, settles=60),
            Limit("*.processes", growth=2, most=40, settles=60),
            Limit("waiting.*", growth=50, most=10_000),
            Limit("cache.*"),
            Limit("rows.table_versions", growth=200, share=0.1, settles=versions, over=kept),
            Limit("rows.removed_versions", growth=200, share=0.1, settles=versions, over=kept),
            Limit("rows.transactions", growth=200, share=0.1, settles=versions),
            Limit("rows.job_events", growth=200, share=0.1, settles=versions),
            Limit("rows.*", growth=100, share=0.1, settles=removed),
            Limit("catalog.log MiB", growth=16, most=80),
            Limit("catalog.MiB", growth=2, share=0.1, settles=versions, over=kept),
            Limit("catalog.free MiB"),
            Limit("disk.root MiB", growth=20, share=0.15, settles=versions, over=kept),
            Limit("disk.lock files", most=5_000),
            Limit("disk.temporary files", growth=5, most=200, settles=60),
        )


@dataclass(slots=True)
class EnduranceReport:
    """The samples of a run, the judgements, and what clients did."""

    samples: list[Sample]
    judgements: list[Judgement]
    load: Load
    leftovers: list[str]
    """What the server has left in its temporary folder after its end, but for the files that it locked."""

    @property
    def complaints(self) -> list[str]:
        """What is wrong."""
        complaints = [f"{each.figure}: {each.complaint}" for each in self.judgements if each.complaint]
        return [*complaints, *self.load.failures, *(f"left behind: {name}" for name in self.leftovers)]

    def __str__(self) -> str:
        counts = [f"{name}: {count}" for name, count in self.load.counts.items()]
        requests = self.samples[-1].figures.get("requests", 0)
        total = f"{len(self.samples)} samples in {self.samples[-1].seconds:,.0f} s, {requests:,.0f} requests"
        return "\n".join([total, *counts, HEAD, *map(str, self.judgements), *self.complaints[:30]])


def endure(plan: EndurancePlan, folder: Path) -> EnduranceReport:
    """Run in an empty folder, which keeps the samples as `samples.csv`."""
    load, samples = Load(), list[Sample]()
    # Not in the folder: the path of a socket, of which SQL's processes have some there, may have 107 bytes alone.
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        with running_target(plan, folder, Path(temporary)) as (place, target), target.http() as http:
            start = time.monotonic()
            with load.running(target, plan.seed):
                while (now := time.monotonic() - start) < plan.seconds:
                    samples.append(take_sample(place, http, start))
                    write_samples(samples, folder / "samples.csv")
                    time.sleep(max(min(plan.every, plan.seconds - now), 0.1))
            samples.append(take_sample(place, http, start))
        left = [path.name for path in place.temporary.iterdir() if not path.name.startswith("tiltyard-locks-")]
    write_samples(samples, folder / "samples.csv")
    return EnduranceReport(samples, judge(samples, plan.limits), load, left)


@contextmanager
def running_target(plan: EndurancePlan, folder: Path, temporary: Path) -> Iterator[tuple[Place, Target]]:
    """Start a server with authentication and TLS and a folder for its temporary files, and make its tables."""
    files = loopback_certificate(folder)
    flags = ("--tls-certificate", str(files.certificate), "--tls-key", str(files.key))
    environ = {**plan.settings, "TMPDIR": str(temporary)}
    root = folder / "root"
    with (
        trusting(files.certificate),
        secured_server(root, *flags, names=(), environ=environ, forked=False) as secured,
    ):
        key, sql_port = secured.keys["administrator"], int(secured.url.rsplit(":", 1)[1]) + 1
        target = Target(
            secured.url, key, str(files.certificate), sql_port, tuple(f"t{number}" for number in range(TABLES))
        )
        make_tables(target, plan)
        yield Place(secured.server.process.pid, root / "catalog.db", root, temporary), target


def make_tables(target: Target, plan: EndurancePlan) -> None:
    """Make the tables, and with Spark a schedule whose job deletes rows of one of them."""
    database, chance = target.lancedb(), random.Random(plan.seed)
    for table in target.tables:
        database.create_table(table, make_rows(chance, KEYS))
    if plan.spark:
        arguments = {"table": target.tables[0], "filter": "key < 'k040'"}
        target.lake().schedule("shortening", "delete", arguments, every="30s")


@contextmanager
def trusting(certificate: Path) -> Iterator[None]:
    """Let the clients of this process trust a certificate."""
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = str(certificate)
    try:
        yield
    finally:
        del os.environ["SSL_CERT_FILE"]
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before
