"""Searches by vector beside what users would pick instead: `python -m bench.vectors`.

Vectors in overlapping clusters, most of whose variance lies in a few dimensions, as that of embeddings does. Tiltyard
answers over HTTP, by the index of Lance and by its index in memory, in a process each; Chroma's HTTP server has the
same vectors. Sides take turns under the same load: one generator process and prepared requests. Recall is the share of
the ten nearest rows, found by comparing all of them, that responses have. lancedb's client, and libraries without a
server, are asked by Python threads in one process (`bench.vector_clients`).
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median

from bench.load import Load
from bench.rounds import Side
from bench.servers import Server
from bench.vector_clients import EDGE, LIBRARIES, Asked, lancedb_client, measure_client
from bench.vector_subjects import (
    CHECKED,
    FILTERS,
    NEAREST,
    TABLE,
    Below,
    Chroma,
    Matrix,
    Subject,
    Tiltyard,
    Vectors,
    describe,
)
from bench.wire import ARROW, call, call_json, of_table, stream

CALLERS = (1, 8, 32)
FILTER_CALLERS = 8
SHARES = (0.5, 0.1, 0.01, 0.001)
FEW_CHECKED = 20
"""Queries whose recall is checked where a server answers fewer than `FEW_CHECKED` a second."""
PARTS = ("callers", "filters", "libraries", "writes")
WRITE_ROWS = 1_000_000
"""Rows of a request that fills the table: its body is in memory."""
WRITES_PER_SECOND = 5
ROWS_PER_WRITE = 100


def recall(
    ids: Callable[[Matrix, Below | None], Sequence[int]],
    vectors: Vectors,
    below: Below | None,
    checked: int = CHECKED,
    written: int = 0,
) -> float:
    """Return the share of the nearest rows that responses to the first queries have."""
    pairs = zip(vectors.queries, vectors.nearest(below, written)[:checked], strict=False)
    return sum(len(expected & set(ids(query, below))) for query, expected in pairs) / (NEAREST * checked)


def measure(
    subjects: Sequence[Subject], vectors: Vectors, below: Below | None, callers: int, arguments: argparse.Namespace
) -> Iterator[str]:
    """Yield the lines of the table for one load: the last of the subjects is what the others are compared with."""
    sides = [Side(subject.server) for subject in subjects]
    load = Load(callers, arguments.seconds)
    for _ in range(arguments.rounds):
        for side, subject in zip(sides, subjects, strict=True):
            requests = [subject.request(query, below) for query in vectors.queries]
            side.take(lambda requests=requests: cycle(requests), load)  # type: ignore[misc]
    for side, subject in zip(sides, subjects, strict=True):
        found = recall(subject.ids, vectors, below, FEW_CHECKED if side.rate < FEW_CHECKED else CHECKED)
        spread = median(one.p99 / one.p50 for one in side.rounds)
        what = describe(below, vectors.standing)
        ratio = _ratio(side.rate, sides[-1].rate, arguments.seconds) if len(sides) > 1 else ""
        yield f"| {what} | {callers} | {subject.name} | {side.words()} | {found:.3f} | {spread:.1f} | {ratio} |"


def _ratio(rate: float, reference: float, seconds: float) -> str:
    """Return the ratio of two rates; of one that was not answered once in a round, how much more it is at least."""
    return f"{rate / reference:.2f}x" if reference else f"> {rate * seconds:,.0f}x"


@dataclass(slots=True)
class Writing:
    """Rows that a thread writes while searches are measured."""

    written: int = 0
    delays: list[float] = field(default_factory=list)
    """Seconds from the response to a write until a search found a row of it."""


@contextmanager
def writing(subject: Subject, vectors: Vectors) -> Iterator[Writing]:
    """Write rows at a steady rate, and look for one of each write, until the block ends; RuntimeError if late."""
    done, stopping = Writing(), threading.Event()

    def write() -> None:
        began = time.monotonic()
        while not stopping.wait(max(0.0, began + len(done.delays) / WRITES_PER_SECOND - time.monotonic())):
            first = vectors.standing + done.written
            if first == len(vectors.rows):
                return
            subject.insert(vectors, range(first, first + ROWS_PER_WRITE))
            written_at = time.monotonic()
            while first not in subject.ids(vectors.rows[first], None):
                pass
            done.delays.append(time.monotonic() - written_at)
            done.written += ROWS_PER_WRITE

    thread = threading.Thread(target=write)
    began = time.monotonic()
    thread.start()
    try:
        yield done
    finally:
        seconds = time.monotonic() - began
        stopping.set()
        thread.join()
    if len(done.delays) < 0.9 * WRITES_PER_SECOND * seconds:
        raise RuntimeError(f"{subject.name} took {len(done.delays)} writes in {seconds:.0f} s.")


def measure_writes(subjects: Sequence[Subject], vectors: Vectors, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of searches of standing rows, and of those while rows are written."""
    load = Load(8, arguments.seconds * arguments.rounds)
    for subject in subjects:
        requests = [subject.request(query, None) for query in vectors.queries]
        standing, busy = Side(subject.server), Side(subject.server)
        standing.take(lambda requests=requests: cycle(requests), load)  # type: ignore[misc]
        with writing(subject, vectors) as done:
            busy.take(lambda requests=requests: cycle(requests), load)  # type: ignore[misc]
        found = recall(subject.ids, vectors, None, written=done.written)
        ratio, spread = busy.rate / standing.rate, busy.rounds[0].p99 / busy.rounds[0].p50
        yield f"| all, standing | 8 | {subject.name} | {standing.words()} | | | |"
        what = f"all, {WRITES_PER_SECOND * ROWS_PER_WRITE} rows/s written"
        delays = f"found {median(done.delays):.2f} s after the write, at most {max(done.delays):.2f} s"
        line = f"{busy.words()}, {delays}"
        yield f"| {what} | 8 | {subject.name} | {line} | {found:.3f} | {spread:.1f} | {ratio:.2f}x |"


def fill(subject: Tiltyard, vectors: Vectors, index_type: str) -> None:
    """Create the table and its indexes, and wait for them."""
    address = subject.server.address
    call(
        address,
        "POST",
        of_table(TABLE, "create"),
        stream(vectors.table(range(min(WRITE_ROWS, vectors.standing)))),
        ARROW,
    )
    for start in range(WRITE_ROWS, vectors.standing, WRITE_ROWS):
        subject.insert(vectors, range(start, min(start + WRITE_ROWS, vectors.standing)))
    partitions = int(len(vectors.rows) ** 0.5)
    vector = {"column": "vec", "index_type": index_type, "distance_type": "l2", "num_partitions": partitions}
    for column in FILTERS:
        call_json(address, of_table(TABLE, "create_scalar_index"), {"column": column, "index_type": "BTREE"})
    call_json(address, of_table(TABLE, "create_index"), vector)
    while any(index["status"] == "building" for index in call_json(address, of_table(TABLE, "index/list"))["indexes"]):
        time.sleep(0.5)


def main() -> None:
    """Print a table of what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.vectors", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="[default: 300,000]")
    parser.add_argument("--dimension", type=int, default=256, help="[default: 256]")
    parser.add_argument("--index", default="IVF_PQ", help="Lance's index [default: IVF_PQ]")
    parser.add_argument("--memory", default="auto", help="vector_cache_bytes [default: auto, as a server comes]")
    parser.add_argument("--search-width", type=int, default=100, help="ef_search of Chroma [default: 100, its own]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round [default: 4]")
    parser.add_argument(
        "--only",
        choices=PARTS,
        nargs="*",
        default=PARTS,
        help="parts of the table, none to fill a folder [default: all]",
    )
    parser.add_argument(
        "--folder", type=Path, help="keep the vectors there, and use what is there [default: a new one]"
    )
    parser.add_argument("--without-chroma", action="store_true", help="measure our own sides alone")
    arguments = parser.parse_args()
    written = int(2 * (arguments.rounds * arguments.seconds + 1) * WRITES_PER_SECOND) * ROWS_PER_WRITE
    vectors = Vectors.make(arguments.rows, arguments.dimension, written)
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        subjects = start(folder, vectors, arguments, stack)
        print("| filter | callers | side | | recall | p99 / p50 | ratio |\n|---|---|---|---|---|---|---|")
        for below, callers in choose_loads(vectors, arguments.only):
            for line in measure(subjects, vectors, below, callers, arguments):
                print(line, flush=True)
        shape = arguments.rows, arguments.dimension
        if "callers" in arguments.only:
            address = subjects[1].server.address
            url, client = f"http://{address.host}:{address.port}", "Tiltyard, in memory, by lancedb's client"
            replay = Server("replay", ["bench.replay", url], folder / "replay.log")
            stack.callback(replay.stop)
            at_once = f"http://{replay.address.host}:{replay.address.port}"
            limit = "a server that answers at once, by lancedb's client (the recall is no figure)"
            for name, target in ((client, url), (limit, at_once)):
                clients: list[Asked] = [(None, callers) for callers in CALLERS]
                for line in measure_client(name, lancedb_client, target, shape, clients, arguments.seconds):
                    print(line, flush=True)
        for kind, library in LIBRARIES.items() if "libraries" in arguments.only else ():
            loads = list(choose_loads(vectors, ("callers", "filters") if kind == EDGE else ("callers",)))
            for line in measure_client(kind, library, str(folder / "root"), shape, loads, arguments.seconds):
                print(line, flush=True)
        if "writes" in arguments.only:
            for line in measure_writes(subjects[1:], vectors, arguments):
                print(line, flush=True)


def choose_loads(vectors: Vectors, parts: Sequence[str]) -> Iterator[tuple[Below | None, int]]:
    """Yield the filters and callers of some parts of the table; the filters come after a search without one."""
    if "callers" in parts:
        yield from ((None, callers) for callers in CALLERS)
    elif "filters" in parts:
        yield None, FILTER_CALLERS
    if "filters" in parts:
        for column in FILTERS:
            yield from ((Below(column, vectors.limit(share)), FILTER_CALLERS) for share in SHARES)


def start(folder: Path, vectors: Vectors, arguments: argparse.Namespace, stack: ExitStack) -> list[Subject]:
    """Start all servers with the vectors in them."""
    root = folder / "root"
    is_new = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    lance_index = Tiltyard(f"Tiltyard, {arguments.index}", root, folder / "tiltyard.log", "0")
    stack.callback(lance_index.server.stop)
    if is_new:
        fill(lance_index, vectors, arguments.index)
    memory = Tiltyard("Tiltyard, in memory", root, folder / "memory.log", arguments.memory)
    stack.callback(memory.server.stop)
    subjects: list[Subject] = [lance_index, memory]
    if arguments.only:
        print(f"index in memory after {memory.wait_for_memory(vectors):.0f} s", flush=True)
    if not arguments.without_chroma:
        began = time.monotonic()
        chroma = Chroma(folder / "chroma", folder / "chroma.log", arguments.search_width)
        stack.callback(chroma.server.stop)
        chroma.add(vectors)
        print(f"Chroma filled after {time.monotonic() - began:.0f} s", flush=True)
        subjects.append(chroma)
    for subject in subjects:
        memory_size = subject.server.memory() / (1 << 20)
        print(f"{subject.name}: {memory_size:,.0f} MiB", flush=True)
    return subjects


if __name__ == "__main__":
    main()
