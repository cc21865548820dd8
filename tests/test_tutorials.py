"""The tutorials in docs/tutorials are correct: their code runs in order, and their commands print what they show."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import lancedb
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.conformance.duckdb_lance import prepare
from tests.conformance.observations import open_server
from tests.conformance.packages import NoWheelError
from tests.services.server import ServerProcess
from tests.test_docs import HOME, SHOWN_URL, comparable
from tiltyard.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLE = re.compile(r"^```(python|console|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BEFOREHAND = re.compile(r"pip install |(\w+=\S+ )?tiltyard serve ")
"""Commands that the tests have done before: the packages are there, and the server runs."""
OF_THE_SHELL = frozenset({"mkdir", "printf"})
"""Programs by which a tutorial makes its inputs."""
VECTORS = pa.array([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]], pa.list_(pa.float32(), 2))
FILMS = pa.table({"id": [1, 2, 3], "title": ["Roman Holiday", "Up", "Moby Dick"], "year": [1953, 2009, 1956]})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bucket of the tutorial: a folder here."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, lake: Path) -> Iterator[ServerProcess]:
    roots = {"TILTYARD_ALLOWED_ROOTS": json.dumps([str(lake)])}
    server = ServerProcess(tmp_path_factory.mktemp("data"), environ=roots)
    try:
        yield server
    finally:
        status = server.stop()
    assert status == 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a tutorial is followed, and in which the command line keeps its profiles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    return tmp_path


def follow(name: str, replacements: dict[str, str]) -> int:
    """Do what a tutorial says, with other texts in place of some; return how many examples it has."""
    examples = EXAMPLE.findall((HOME / "docs/tutorials" / f"{name}.md").read_text())
    names: dict[str, object] = {}
    for number, (language, shown_example) in enumerate(examples, 1):
        example = shown_example
        for shown, real in replacements.items():
            example = example.replace(shown, real)
        if language == "python":
            exec(compile(example, f"{name}, example {number}", "exec"), names)
        elif language == "text":  # the address of a page of the console
            assert httpx.get(example.strip(), headers={"accept": "text/html"}).status_code == 200
        else:
            run_commands(example)
    return len(examples)


def run_commands(example: str) -> None:
    """Run the commands of an example, and compare what they print with what is shown."""
    for part in re.split(r"^\$ ", example, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        if BEFOREHAND.match(line):
            continue
        program, *arguments = shlex.split(line)
        if program in OF_THE_SHELL:
            subprocess.run(line, shell=True, check=True)
            continue
        assert program == "tiltyard"
        done = CliRunner().invoke(main, arguments)
        assert (done.exit_code, comparable(done.stdout)) == (0, comparable(shown)), (line, done.output)


def test_images_are_found_by_what_they_look_like(folder: Path, server: ServerProcess) -> None:
    assert follow("images", {SHOWN_URL: server.url, "~/": f"{folder}/"}) == 9


def test_own_documents_are_found_by_words_and_by_meaning(folder: Path, server: ServerProcess) -> None:
    assert follow("documents", {SHOWN_URL: server.url, "~/": f"{folder}/"}) == 12


def test_tables_of_a_bucket_are_mounted_moved_and_registered(folder: Path, server: ServerProcess, lake: Path) -> None:
    replacements = {SHOWN_URL: server.url, "~/": f"{folder}/", "s3://lake/tables": str(lake)}
    assert follow("bucket", replacements) == 6


@pytest.mark.extended
def test_tables_of_lancedb_cloud_are_brought_over(folder: Path, server: ServerProcess) -> None:
    cloud = lancedb.connect_catalog(server.url, api_key="any").create_database("media-4f2a1c")
    cloud.create_table("films", FILMS.append_column("vector", VECTORS))
    region = 'api_key="sk_…", region="us-east-1"'
    replacements = {region: f'api_key="any", host_override="{server.url}"', SHOWN_URL: server.url}
    assert follow("lancedb-cloud", replacements) == 5


def test_tables_are_shared_by_duckdb_and_lancedb(folder: Path) -> None:
    """In a process of its own, which has the DuckDB that the extension is made for."""
    try:
        packages = prepare()
    except NoWheelError as error:
        pytest.skip(str(error))
    examples = EXAMPLE.findall((HOME / "docs/tutorials/duckdb.md").read_text())
    code = "\n".join(example for language, example in examples if language == "python")
    with open_server(folder / "data", TILTYARD_DATABASES="strict") as server:
        command = [sys.executable, "-c", code.replace(SHOWN_URL, server.url)]
        environ = {**os.environ, "PYTHONPATH": str(packages)}
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    assert len(examples) == 9
