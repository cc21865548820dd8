"""Lineage across a mount: of commits below it, of clones and copies, of tables that move in and out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tiltyard
from tests.mounts.backends import local_directory
from tests.mounts.served.conftest import MOUNT, environ
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.cli import main


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Return a server with a folder mounted, in which the namespace `a` is."""
    (tmp_path / "lake").mkdir()
    backend = local_directory(tmp_path / "lake", "manifest")
    server = ServerProcess(tmp_path / "served", environ=environ(backend, tmp_path, 0.0))
    yield server
    server.stop()


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with Wire(server.url) as wire:
        wire.good(wire.namespace([MOUNT, "a"], "create"))
        yield wire


@pytest.fixture
def lake(server: ServerProcess, wire: Wire) -> tiltyard.Lake:
    return tiltyard.connect(server.url)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return the path of a file with rows."""
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


def edges(lineage: tiltyard.lake.Lineage) -> list[tuple[str, str, str | None, int | None]]:
    return [(edge.source.name, edge.target.name, edge.job_kind, edge.version) for edge in lineage.edges]


def test_jobs_below_a_mount_have_lineage_both_ways(lake: tiltyard.Lake, file: str) -> None:
    there, here = lake.table(f"{MOUNT}.a.films"), lake.table("films")
    there.ingest(file)
    there.upsert([{"id": 4}], on="id")
    here.ingest(there.dataset().uri, format="lance")
    name = f"{MOUNT}.a.films"
    assert edges(here.lineage()) == [
        (name, "films", "ingest", 1),
        ("memory:builtins.list", name, "upsert", 2),
        (file, name, "ingest", 1),
    ]
    assert edges(there.lineage(version=1)) == [(file, name, "ingest", 1)]
    assert there.lineage("downstream").tables == ("films",)
    assert lake.lineage(file).tables == (name, "films")


def test_clones_into_a_mount_and_copies_out_of_it_have_the_table_as_their_source(
    lake: tiltyard.Lake, wire: Wire, file: str, server: ServerProcess
) -> None:
    lake.table("films").ingest(file)
    lake.table("films").upsert([{"id": 4}], on="id")
    source = {"source_location": lake.table("films").dataset().uri}
    wire.good(wire.table([MOUNT, "a", "cloned"], "clone", source))
    copied = CliRunner().invoke(main, ["import-catalog", f"{MOUNT}$a", "own", "--copy", "--url", server.url])
    assert copied.exit_code == 0, copied.output
    cloned = f"{MOUNT}.a.cloned"
    assert edges(lake.table("own.cloned").lineage(depth=2)) == [
        (cloned, "own.cloned", "copy", 2),
        ("films", cloned, "clone", 2),
    ]
    assert lake.table("films").lineage("downstream").tables == (cloned, "own.cloned")
    assert lake.table("own.cloned").lineage(version=2).edges[0].source_version == 2


def test_lineage_moves_with_a_table_into_the_catalog_and_back(
    lake: tiltyard.Lake, file: str, server: ServerProcess
) -> None:
    def move(*arguments: str) -> None:
        result = CliRunner().invoke(main, ["import-catalog", *arguments, "--url", server.url])
        assert result.exit_code == 0, result.output

    lake.table(f"{MOUNT}.a.films").ingest(file)
    move(f"{MOUNT}$a", "own")
    assert edges(lake.table("own.films").lineage()) == [(file, "own.films", "ingest", 1)]
    lake.table("own.films").upsert([{"id": 4}], on="id")
    move("own", "--to", f"{MOUNT}$b")
    assert [edge[2:] for edge in edges(lake.table(f"{MOUNT}.b.films").lineage())] == [("upsert", 2), ("ingest", 1)]
    assert lake.lineage(file).tables == (f"{MOUNT}.b.films",)
