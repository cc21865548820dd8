"""Mounts of the settings file: served from the start, altered with the file, refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.services.forked_process import run_tiltyard
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.cli import main


def lake(folder: Path, rows: int) -> Path:
    """Return a folder with a table of so many rows."""
    lance.write_dataset(pa.table({"x": range(rows)}), str(folder / "films.lance"))
    return folder


def settings_file(folder: Path, text: str) -> Path:
    file = folder / "tiltyard.toml"
    file.write_text(text)
    return file


def count(server: ServerProcess, *path: str) -> int:
    with Wire(server.url) as wire:
        rows: int = wire.good(wire.table(path, "count_rows"))
    return rows


def listed(root: Path) -> str:
    return CliRunner().invoke(main, ["mount", "list", "--root", str(root)]).stdout


def test_a_mount_of_the_settings_is_served_from_the_start_and_altered_with_them(tmp_path: Path) -> None:
    first, second, root = lake(tmp_path / "first", 3), lake(tmp_path / "second", 5), tmp_path / "served"
    config = settings_file(tmp_path, f'[mounts.lake]\nkind = "dir"\nroot = "{first}"\n')
    server = ServerProcess(root, "--config", str(config))
    try:
        assert count(server, "lake", "films") == 3
        settings_file(
            tmp_path,
            f'[mounts.lake]\nkind = "dir"\nroot = "{second}"\nmax_age = 5\n'
            f'[mounts.other]\nkind = "dir"\nroot = "{first}"\nnamespace = "a$b"\n',
        )
        assert server.stop() == 0
        server.start()
        assert (count(server, "lake", "films"), count(server, "a", "b", "films")) == (5, 3)
        settings_file(tmp_path, "workers = 1\n")
        assert server.stop() == 0
        server.start()
        assert listed(root).splitlines() == [
            f"a$b  dir  root={first}  max-age=1  (in the server's settings)",
            f"lake  dir  root={second}  max-age=5  (in the server's settings)",
        ]
    finally:
        server.stop()


def test_a_mount_of_the_settings_that_is_altered_by_a_client_is_altered_back(tmp_path: Path) -> None:
    folder, root = lake(tmp_path / "lake", 3), tmp_path / "served"
    config = settings_file(tmp_path, f'[mounts.lake]\nkind = "dir"\nroot = "{folder}"\n')
    server = ServerProcess(root, "--config", str(config))
    try:
        arguments = ["mount", "alter", "lake", "--set", "mode=listing", "--url", server.url]
        altered = CliRunner().invoke(main, arguments)
        assert "mode=listing" in altered.stdout and "its next start alters it back" in altered.stderr
        assert server.stop() == 0
        server.start()
        assert "mode=listing" not in listed(root)
    finally:
        server.stop()


def test_a_catalog_that_is_away_keeps_no_server_from_starting(tmp_path: Path) -> None:
    text = '[mounts.hive]\nkind = "hive"\nuri = "thrift://127.0.0.1:1"\n'
    server = ServerProcess(tmp_path / "served", "--config", str(settings_file(tmp_path, text)))
    try:
        with Wire(server.url) as wire:
            assert wire.http.get("/health/ready").status_code == 200
            response = wire.http.get("/v1/namespace/hive/list")
            assert (response.status_code, response.json()["code"]) == (503, 17)
            assert wire.good(wire.http.get("/v1/namespace/$/list"))["namespaces"] == ["hive"]
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[mounts.a]\nkind = "hivee"\nuri = "x"', "no kind of mount 'hivee': use one of dir, glue"),
        ('[mounts.a]\nroot = "/x"', "The mount a cannot be used"),
        ('[mounts.a]\nkind = "dir"\nroot = "/x"\nrooot = 1', "no setting 'rooot'"),
        ('[mounts.a]\nkind = "dir"\nroot = "/x"\nmax_age = -1', "has a max_age of -1"),
        ('[mounts.a]\nkind = "dir"\nroot = "/x"\nnamespace = "$"', "cannot be the root"),
        (
            '[mounts.a]\nkind = "dir"\nroot = "/x"\n[mounts.b]\nkind = "dir"\nroot = "/y"\nnamespace = "a$b"',
            "The mounts a and b are one below the other",
        ),
        (
            '[mounts.a]\nkind = "unity"\nuri = "https://unity.example.org"\ntoken = "hunter2"',
            "token is a secret in plain text: write env:NAME or file:PATH",
        ),
        (
            '[mounts.a]\nkind = "unity"\nuri = "https://unity.example.org"\ntoken = "env:TILTYARD_NO_SUCH"',
            "needs the variable TILTYARD_NO_SUCH: set it",
        ),
    ],
)
def test_settings_with_an_impossible_mount_are_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    config = settings_file(tmp_path, text)
    assert CliRunner().invoke(main, ["db", "upgrade", "--root", str(tmp_path / "served")]).exit_code == 0
    result = CliRunner().invoke(main, ["mount", "list", "--root", str(tmp_path / "served"), "--config", str(config)])
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1, result.output
    assert sentence in result.stderr and "hunter2" not in result.stderr


def test_server_with_an_unknown_kind_of_mount_does_not_start(tmp_path: Path) -> None:
    config = settings_file(tmp_path, '[mounts.a]\nkind = "hivee"\n')
    serve = ("serve", "--root", str(tmp_path / "served"), "--port", "0", "--sql-port", "off", "--config", str(config))
    done = run_tiltyard(*serve)
    assert done.returncode == 1 and "no kind of mount 'hivee'" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
