"""A server with one of everything, for invalid requests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream

ROWS = pa.table(
    {
        "id": pa.array(range(40), pa.int64()),
        "text": [f"word{number % 7} fish" for number in range(40)],
        "vector": pa.array([[float(number), 1.0] for number in range(40)], pa.list_(pa.float32(), 2)),
    }
)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server; fail if any request makes it log an error."""
    running = ServerProcess(tmp_path_factory.mktemp("fuzz"))
    yield running
    assert running.process.poll() is None, "the server died"
    assert running.stop() == 0
    errors = [line for line in running.log if " ERROR " in line or "Traceback" in line or "panicked" in line]
    assert not errors, "".join(running.log)[-20_000:]


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with Wire(server.url) as client:
        yield client


@pytest.fixture(scope="package")
def states() -> list[tuple[object, ...]]:
    """What the server has had after it was furnished, each time."""
    return []


@pytest.fixture
def furnished(wire: Wire, states: list[tuple[object, ...]]) -> Wire:
    """The wire to a server with a namespace `n`, a written table `t` with a tag, and a declared table `d`.

    They are written again where the test before has changed them.
    """
    if not states or _state(wire) != states[-1]:
        wire.namespace(["n"], "create", {"mode": "ExistOk"})
        wire.table(["t"], "create", stream(ROWS), query={"mode": "overwrite"})
        wire.table(["n", "t"], "create", stream(ROWS), query={"mode": "exist_ok"})
        wire.table(["d"], "declare")
        wire.table(["t"], "tags/create", {"tag": "v", "version": 1})
        states.append(_state(wire))
    return wire


def _state(wire: Wire) -> tuple[object, ...]:
    """Return the version of `t` and its tags, and which of the others are there."""
    described = wire.table(["t"], "describe", {"load_detailed_metadata": True})
    version = described.json()["version"] if described.status_code == 200 else None
    others = [wire.table(id_, "exists").status_code for id_ in (["n", "t"], ["d"])]
    return (version, wire.table(["t"], "tags/list").text, *others, wire.namespace(["n"], "exists").status_code)


@pytest.fixture(scope="session")
def bounds() -> settings:
    """How many requests for each operation: `FUZZ_EXAMPLES=1000 make test PYTEST_ARGS=tests/fuzz` tries more."""
    return settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", "8")),
        derandomize="FUZZ_EXAMPLES" not in os.environ,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
