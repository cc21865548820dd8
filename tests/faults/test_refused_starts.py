"""A server that cannot start prints the reason in one sentence, and exits with status 1."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.faults.conftest import Installation
from tests.services.forked_process import run_tiltyard
from tiltyard.audit import check_audit_file
from tiltyard.config import Settings
from tiltyard.store import open_store


def refused(*flags: str, command: str = "serve", before: str | None = None, status: int = 1) -> str:
    """Run a command that cannot start; return its one line of error. Another line, before it, has the text `before`."""
    result = run_tiltyard(*command.split(), *flags, TILTYARD_SQL_PORT="off")  # its default may be taken
    assert result.returncode == status, result
    assert result.stdout == ""
    *earlier, line = result.stderr.strip().splitlines()
    assert len(earlier) == (before is not None) and all(before in each for each in earlier if before), result.stderr
    assert line.startswith("tiltyard: ") and line.endswith(".") and "Error" not in line, line
    return line


@pytest.mark.extended
def test_serve_on_a_port_that_stays_taken_waits_for_a_while_and_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in refused("--root", str(tmp_path), "--port", port, before=f"127.0.0.1:{port} is in use: waiting")


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_root_that_is_no_folder_or_takes_no_files_is_refused(tmp_path: Path, command: str) -> None:
    file = tmp_path / "file"
    file.touch()
    for root in (file, file / "below", Path("/proc/tiltyard")):
        assert str(root) in refused("--root", str(root), "--db", f"sqlite:///{tmp_path}/c.db", command=command)


def test_serve_with_an_audit_that_cannot_be_written_is_refused_and_other_commands_leave_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "none" / "audit.jsonl"
    monkeypatch.setenv("TILTYARD_AUDIT_LINES", str(lines))
    monkeypatch.setenv("TILTYARD_AUDIT", "all")
    root = ["--root", str(tmp_path / "data")]
    assert str(lines) in refused(*root, "--port", "0")
    lines.parent.mkdir()
    open_store(f"sqlite:///{tmp_path}/data/catalog.db").close()
    assert run_tiltyard("gc", "--dry-run", *root).returncode == 0
    assert not lines.exists()


def test_check_audit_that_is_off_makes_no_file(tmp_path: Path) -> None:
    lines = tmp_path / "audit.jsonl"
    check_audit_file(Settings(audit="off", audit_lines=str(lines)))
    assert not lines.exists()
    check_audit_file(Settings(audit="all", audit_lines=str(lines)))
    assert lines.exists()


def test_database_of_a_newer_version_is_refused(installation: Installation) -> None:
    assert installation.start().stop() == 0
    installation.sql("INSERT INTO schema_migrations VALUES (9999, 0)")
    for command in ("serve", "worker", "db upgrade"):
        flags = ["--root", str(installation.root), "--db", installation.db]
        assert "newer" in refused(*flags, *(["--port", "0"] if command == "serve" else []), command=command)


@pytest.mark.parametrize(
    "flags",
    [
        ["--db", "mysql://there"],
        pytest.param(["--db", "postgresql://nobody@127.0.0.1:1/none"], marks=pytest.mark.extended),
        ["--db", "sqlite:////proc/none/catalog.db"],
        ["--root", "s3://bucket/without/a/database"],
        ["--root", "nothing://like/this", "--db", "sqlite:///DIR/c.db"],
        ["--config", "DIR/none.toml"],
        ["--host", "not an address"],
        ["--port", "99999"],
    ],
    ids=" ".join,
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, flags: list[str]) -> None:
    flags = [flag.replace("DIR", str(tmp_path)) for flag in flags]
    defaults = ["--root", str(tmp_path)] if "--root" not in flags else []
    refused(*defaults, *(["--port", "0"] if "--port" not in flags else []), *flags)


@pytest.mark.extended
@pytest.mark.parametrize("command", ["gc", "repair", "undrop"])
def test_looking_after_a_catalog_that_is_not_there_is_refused_and_makes_none(tmp_path: Path, command: str) -> None:
    assert "no catalog" in refused("--root", str(tmp_path / "mistyped"), command=command, status=4)
    assert list(tmp_path.iterdir()) == []
