"""What a newcomer types works: the first quarter of an hour as a script, and the first lines of each way in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import duckdb
import httpx
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.conformance.duckdb_lance import prepare
from tests.conformance.packages import NoWheelError
from tests.services.ports import reserve_two_ports
from tests.services.server import ServerProcess
from tests.test_docs import HOME, SHOWN_URL, comparable

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BEFOREHAND = re.compile(r"pip install |tiltyard serve ")
"""Commands that the tests have done before: the packages are there, and the server runs."""
SHOWN_SQL = "grpc://127.0.0.1:2334"
DUCKDB_SESSION = """
import sys
from pathlib import Path

import duckdb
import duckdb_extension_lance

session = duckdb.connect()
session.load_extension(str(next(Path(duckdb_extension_lance.__file__).parent.rglob("lance.duckdb_extension"))))
for statement in sys.argv[1].split(";"):
    rows = session.execute(statement).fetchall() if statement.strip() else rows
assert rows == [("Roman Holiday",)], rows
"""


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a person who has just installed Tiltyard, and whose home is a folder."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TILTYARD_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return {**own, "PATH": path, "HOME": str(folder), "XDG_CONFIG_HOME": f"{folder}/.config", "NO_COLOR": "1"}


def run(command: str, folder: Path) -> str:
    """Run a command of a shell in a folder; return what it prints."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_first_quarter_of_an_hour_goes_from_a_file_to_searches_sql_and_an_export(tmp_path: Path) -> None:
    port, reserved = reserve_two_ports("127.0.0.1")
    said = run(f"PORT={port} bash {HOME / 'examples/newcomer.sh'}", tmp_path)
    for sock in reserved:
        sock.close()
    for expected in ("4 rows are in films", "['Free Willy', 'Moby Dick']", "  1950      2", "4 rows of films are in"):
        assert expected in said, said
    [(films,)] = duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/films.parquet'").fetchall()
    assert films == 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which everything is typed."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_first_lines_of_each_way_in_work_one_after_the_other(folder: Path) -> None:
    blocks = BLOCK.findall((HOME / "docs/start.md").read_text())
    server = ServerProcess(folder / "data")
    sql = f"grpc://127.0.0.1:{httpx.URL(server.url).port + 1}"  # type: ignore[operator]
    names: dict[str, Any] = {}
    try:
        for number, (language, shown) in enumerate(blocks, 1):
            text = shown.replace(SHOWN_URL, server.url).replace(SHOWN_SQL, sql)
            if language == "console":
                follow(text, folder)
            elif language == "python":
                exec(compile(text, f"start.md, block {number}", "exec"), names)
            elif language == "sql":
                ask_duckdb(text)
            elif language == "json":
                anyio.run(list_tables, json.loads(text)["mcpServers"]["lake"], folder)
            else:
                assert "Roman Holiday" in httpx.get(text.strip(), headers={"accept": "text/html"}).text
    finally:
        status = server.stop()
    languages = [language for language, _ in blocks]
    assert (status, languages.count("python"), languages.count("console")) == (0, 4, 5)


def follow(console: str, folder: Path) -> None:
    """Run the commands of a block, and compare what they print with what is shown, where it is."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        if not BEFOREHAND.match(line):
            printed = run(line, folder)
            assert not shown.strip() or comparable(printed).strip() == comparable(shown).strip(), line


def ask_duckdb(statements: str) -> None:
    """Run statements of SQL by the DuckDB that the extension is made for, in a process of its own."""
    try:
        packages = prepare()
    except NoWheelError:
        return  # there is no extension for this platform: tests/test_tutorials.py skips its tutorial
    command = [sys.executable, "-c", DUCKDB_SESSION, statements]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(packages)}
    )
    assert done.returncode == 0, done.stderr


async def list_tables(entry: dict[str, Any], folder: Path) -> None:
    """Look into the catalog as an assistant does, whose settings have this entry."""
    path = Path(sys.executable).parent / entry["command"]
    parameters = StdioServerParameters(command=str(path), args=entry["args"], env=environment(folder))
    async with Client(parameters) as client:
        result = await client.call_tool("list", {})
    assert "films" in str(result.content)
