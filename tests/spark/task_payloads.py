"""Record the payloads that Spark's Python workers are sent, and what these import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from tiltyard.pipeline import spark_tasks

LOADING = """
import pickle, sys
for function, payloads in pickle.load(open(sys.argv[1], "rb")):
    pickle.loads(function)
    for payload in payloads:
        pickle.loads(payload)
    print(sorted(name for name in sys.modules if name.startswith("lance_namespace")))
"""
"""Load payloads in a process that has imported nothing yet."""

Sent = list[tuple[bytes, tuple[bytes, ...]]]


def recorded(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Record what is sent from now on: functions and their payloads; those of partitions have none."""
    payloads_sent: Sent = []
    of_payloads, of_partitions = spark_tasks._payload_worker, spark_tasks._partition_worker

    def with_payloads(work: Any, wave: Any, *rest: Any) -> Any:
        function = of_payloads(work, wave, *rest)
        payloads_sent.append((cloudpickle.dumps(function), wave.payloads))
        return function

    def on_partition(work: Any, *rest: Any) -> Any:
        function = of_partitions(work, *rest)
        payloads_sent.append((cloudpickle.dumps(function), ()))
        return function

    monkeypatch.setattr(spark_tasks, "_payload_worker", with_payloads)
    monkeypatch.setattr(spark_tasks, "_partition_worker", on_partition)
    return payloads_sent


def clients_imported(sent: Sent, folder: Path) -> list[str]:
    """Return the modules of the namespace client that a worker has imported after each payload, as it prints them."""
    dumped = folder / "sent"
    dumped.write_bytes(cloudpickle.dumps(sent))
    process = subprocess.run([sys.executable, "-c", LOADING, dumped], capture_output=True, text=True, check=True)
    return process.stdout.splitlines()
