"""Run the vector stores of LangChain and LlamaIndex, as they are published, with connections of lancedb to a server.

Their packages are installed beside this environment (some 180 MB) by the first run; where one has no wheel for the
platform, they are not run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.conformance.observations import Driver, ObservedCall, ServerObservations, drain_operations, outcome_of
from tests.conformance.packages import install, versions
from tests.services.recorder import Recorder
from tests.services.secured import secured_server

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "vector_stores.txt"
CONNECTIONS = {"db": "`db://`", "namespace": "`connect_namespace`"}
PACKAGES = {
    "LangChain": ("langchain-community", "langchain-lancedb"),
    "LlamaIndex": ("llama-index-vector-stores-lancedb",),
}


def packages() -> Path:
    """Return the folder of their packages, for PYTHONPATH. Raises NoWheelError."""
    return install(Path(sys.prefix) / REQUIREMENTS.stem, REQUIREMENTS)


def about(store: str) -> str:
    pinned = versions(REQUIREMENTS)
    return f"Seen with {', '.join(f'{name} {pinned[name]}' for name in PACKAGES[store])}."


def run(store: str, connection: str, folder: Path) -> ServerObservations:
    """Run every call of a store with one kind of connection, to a server of its own. Raises NoWheelError."""
    environ = {"PYTHONPATH": str(packages()), "TOKENIZERS_PARALLELISM": "false"}
    with secured_server(folder / connection) as server, Recorder(server.url) as requests:
        given = {"url": server.url, "recorded": requests.url, "connection": connection}
        given["key"] = server.keys["administrator"]
        command = [sys.executable, str(HERE / "drivers/store_calls.py"), store.lower(), json.dumps(given)]
        calls = []
        with Driver(command, environ, folder / f"{connection}.log") as driver:
            while call := driver.next_response():
                outcome = outcome_of(call, call["expected"], call["refusal"], call["known"])
                calls.append(ObservedCall(call["what"], call["call"], outcome, drain_operations(requests)))
    return ServerObservations(CONNECTIONS[connection], tuple(calls))


def observe(store: str) -> list[ServerObservations]:
    """Run every call of a store, with each kind of connection. Raises NoWheelError."""
    with tempfile.TemporaryDirectory() as folder:
        return [run(store, connection, Path(folder)) for connection in CONNECTIONS]
