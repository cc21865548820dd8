"""`python -m tests.faults.sweep [NAME…]`: kill operations at all of their writes, and list the writes not reached.

With `--every N` at each N-th alone, with `--postgres` on PostgreSQL, with `--s3` with tables in a bucket of S3.
`--record` notes the functions reached in `reached.txt`. Ends with status 1 where a promise did not hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from tests.faults.sweep.operations import OPERATIONS
from tests.faults.sweep.places import reached_places, record, write_places
from tests.faults.sweep.spark import SharedSpark
from tests.faults.sweep.spark_jobs import SPARK_JOBS
from tests.faults.sweep.sweep import Servers, Sweep, sweep, thinned
from tests.services.postgres import postgres_server
from tests.services.s3 import s3_server
from tests.spark.conftest import start_session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.faults.sweep")
    parser.add_argument("names", nargs="*", choices=[*OPERATIONS, []], metavar="NAME", help=", ".join(OPERATIONS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    names = options.names or [name for name, each in OPERATIONS.items() if not (options.s3 and each.on_disk)]
    with (
        tempfile.TemporaryDirectory(prefix="sweep-") as folder,
        postgres_server() if options.postgres else nullcontext() as postgres,
        s3_server() if options.s3 else nullcontext() as objects,
        start_session("local[1]") if SPARK_JOBS.keys() & set(names) else nullcontext() as session,
    ):
        servers, spark = Servers(postgres, objects), None
        if session is not None:
            session.sparkContext.setLogLevel("OFF")  # it misses the drivers that were killed
            spark = SharedSpark(session)
        sweeps = [_report(sweep(name, Path(folder) / name, servers, thinned(options.every), spark)) for name in names]
    reached = reached_places(kill for each in sweeps for kill in each.kills) & write_places()
    if options.record:
        record(reached)
    unreached = sorted(write_places() - reached)
    _print(f"{len(unreached)} of {len(write_places())} functions that write were not reached:")
    _print(*(f"  {place}" for place in unreached))
    return int(any(each.complaints for each in sweeps))


def _report(done: Sweep) -> Sweep:
    _print(str(done), *done.complaints)
    return done


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
