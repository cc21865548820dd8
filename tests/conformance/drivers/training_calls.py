"""Iterate over lancedb's StreamingDataset as a trainer does: a JSON object a line in, one out behind MARK.

It runs in a process of its own, with tests/conformance/stand_in on PYTHONPATH. `epochs` are lists of arguments of
StreamingDataset; those of the loader are `workers`, `start` (how workers are started) and `batch_size`; `batches` is
after how many an epoch is left, `pause` after how many the trainer says where it is, and waits for a line.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from functools import partial
from itertools import islice
from typing import Any

import lancedb
from lancedb.streaming import StreamingDataLoader, StreamingDataset

MARK = "\x1e"
CONNECT_RETRIES = 100
"""Of a request that finds no server, with 0.25 to 0.5 s between them."""


def open_table(server: str, name: str) -> Any:
    """Open a table, in this process or a worker."""
    retries = {"retry_config": {"connect_retries": CONNECT_RETRIES}}
    return lancedb.connect("db://tests", api_key="none", host_override=server, client_config=retries).open_table(name)


def say(**answer: Any) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()


def run_epoch(table: Any, request: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of each batch of an epoch, and the state behind the last one."""
    dataset = StreamingDataset(table, connection_factory=partial(open_table, request["server"]), **arguments)
    if "state" in request:
        dataset.load_state_dict(request["state"])
    workers = {"num_workers": request.get("workers", 0), "multiprocessing_context": request.get("start", "forkserver")}
    batches = iter(StreamingDataLoader(dataset, batch_size=request["batch_size"], **workers))
    try:
        ids = [batch["id"] for batch in islice(batches, request.get("pause", 0))]
        if ids:
            processes = [worker.pid for worker in getattr(batches, "_workers", ())]
            say(batches=ids, state=dataset.state_dict(), processes=processes)
            sys.stdin.readline()
        ids += [batch["id"] for batch in islice(batches, request.get("batches"))]
        return {"batches": ids, "state": dataset.state_dict()}
    finally:
        batches._shutdown_workers()


def main() -> None:
    multiprocessing.set_forkserver_preload(["lancedb.streaming"])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            table = open_table(request["server"], request["table"])
            if "version" in request:
                table.checkout(request["version"])
            say(epochs=[run_epoch(table, request, arguments) for arguments in request["epochs"]])
        except Exception as error:  # noqa: BLE001  # whatever it is, the test is told
            say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
