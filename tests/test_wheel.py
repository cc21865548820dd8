"""The wheel in an empty environment, without the source tree: what a person needs is there.

Its packages are the locked ones, from uv's cache or from the index that pip is set up with; where neither has them the
test fails, since these are what the environment of the tests was made of.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from bench.installed import build_wheel, install, make_environment

from tests.services.ports import reserve_two_ports

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]

PATIENCE_SECONDS = 120


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    python = make_environment(folder / "environment")
    install(python, build_wheel(folder))
    return python.parent


def run(programs: Path, folder: Path, *arguments: str, status: int = 0) -> str:
    """Run a program of the environment in an empty folder, with nothing of this one's; return what it says."""
    command = [str(programs / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environ(folder), check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def environ(folder: Path) -> dict[str, str]:
    return {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder)}


@pytest.fixture(scope="module")
def url(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo of the installed wheel."""
    folder = tmp_path_factory.mktemp("demo")
    port, _reserved = reserve_two_ports()
    command = [str(programs / "tiltyard"), "demo", "--no-browser", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environ(folder))
    assert process.stdout is not None
    assert any(line.startswith("Ctrl-C") for line in process.stdout), "the demo has ended"
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    assert process.wait(60) == 0


def page(url: str, address: str) -> str:
    with urlopen(f"{url}/console/{address}", timeout=60) as response:
        text: str = response.read().decode()
    return text


def test_package_is_the_wheels_and_takes_neither_java_nor_a_client(programs: Path, tmp_path: Path) -> None:
    found = run(programs, tmp_path, "python", "-c", "import tiltyard; print(tiltyard.__file__)")
    assert Path(found.strip()).is_relative_to(programs.parent)
    listed = "import importlib.metadata as m; print([d.name.lower() for d in m.distributions()])"
    names = run(programs, tmp_path, "python", "-c", listed)
    for name in ("pyspark", "pandas", "lancedb", "boto3", "botocore", "confluent-kafka", "thrift", "wordllama"):
        assert f"'{name}'" not in names
    assert run(programs, tmp_path, "tiltyard", "--version").startswith("tiltyard, version ")


def test_console_searches_by_meaning_and_by_words(url: str) -> None:
    assert "WALL·E" in page(url, f"search/films?mode=vector&meaning={quote('a lonely robot in love')}")
    assert "Murder on the Orient Express" in page(url, "search/films?mode=text&text=murder+train")
    for address in ("", "table/films", "rows/films", "map/films", "versions/films", "sql", "server"):
        assert "</html>" in page(url, address), address


def test_sql_runs(url: str, programs: Path, tmp_path: Path) -> None:
    query = "SELECT count(*) AS films FROM films WHERE country = 'Japan'"
    assert "47" in run(programs, tmp_path, "tiltyard", "sql", query, "--server", url)


def test_vectors_are_searched_in_memory(url: str, programs: Path, tmp_path: Path) -> None:
    index = ("tiltyard", "index", "create", "films", "vector", "IVF_FLAT", "--num-partitions", "4", "--wait")
    run(programs, tmp_path, *index, "--server", url)
    search = f"search/films?mode=vector&plan=explain&meaning={quote('ghosts in an old house')}"
    deadline = time.monotonic() + PATIENCE_SECONDS
    routes = []
    while "index_in_memory" not in routes[-1:]:
        assert time.monotonic() < deadline, routes
        routes += re.findall(r"Answered by <strong>([^<]*)", page(url, search))
        time.sleep(0.1)


def test_own_file_is_brought_in_and_searched_without_a_server(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "birds.csv").write_text("id,name,sings\n1,wren,true\n2,heron,false\n")
    assert "2 rows are in birds" in run(
        programs, tmp_path, "tiltyard", "import", "birds.csv", "birds", "--root", "data"
    )
    assert "wren" in run(programs, tmp_path, "tiltyard", "head", "birds", "--where", "sings", "--root", "data")
