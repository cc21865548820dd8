"""The vector stores of LangChain and LlamaIndex, unmodified, with connections of lancedb to a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.packages import NoWheelError
from tests.conformance.vector_stores import CONNECTIONS, PACKAGES, packages, run
from tests.services.secured import secured_server

PAGE = Path(__file__).parents[2] / "docs/clients.md"

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def installed() -> Path:
    """The folder of their packages. Skips the tests where one has no wheel for this platform."""
    try:
        return packages()
    except NoWheelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("connection", CONNECTIONS)
@pytest.mark.parametrize("store", PACKAGES)
def test_every_call_ends_as_the_table_of_the_docs_says(
    store: str, connection: str, installed: Path, tmp_path: Path
) -> None:
    calls = run(store, connection, tmp_path).calls
    assert len(calls) >= 22
    assert [f"{call.call}: {call.outcome}" for call in calls if not call.is_expected] == []


def test_examples_of_the_docs_run(installed: Path, tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## LangChain and LlamaIndex")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(examples) == 4
    with secured_server(tmp_path / "root") as server:
        text = "\n".join(examples).replace("http://127.0.0.1:2333", server.url)
        text = text.replace("tilt_…", server.keys["administrator"])
        environ = {**os.environ, "PYTHONPATH": str(installed)}
        run = subprocess.run(
            [sys.executable, "-c", text], check=False, capture_output=True, text=True, env=environ, timeout=300
        )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["ship", "ship", "ship"]
