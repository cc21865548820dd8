"""`tiltyard doctor`: what it says of a machine and of settings, with what to do, and its exit status."""

from __future__ import annotations

import socket
import sqlite3
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import tiltyard
from tiltyard.cli import main
from tiltyard.config import Settings
from tiltyard.runtime.system_memory import SystemMemory
from tiltyard.server import doctor
from tiltyard.server.startup_checks import MAX_TEMPORARY_PATH_BYTES, check_exposure

WRONG = 3


def examine(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, dict[str, str]]:
    """Return the exit status, and what is said by the subject: the verdict, the text, and the advice."""
    result = CliRunner().invoke(main, ["doctor", "--port", "0", "--sql-port", "off", *arguments], env=environ)
    said: dict[str, str] = {}
    subject = ""
    for line in result.output.splitlines():
        verdict, rest = line[:8].strip(), line[9:]
        if verdict:
            subject, _, text = rest.partition(": ")
            said[subject] = "\n".join(filter(None, (said.get(subject), f"{verdict}: {text}")))
        else:
            said[subject] += f" {rest}"
    return result.exit_code, said


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_new_root_is_well_and_nothing_is_made(tmp_path: Path) -> None:
    status, said = examine("--root", str(tmp_path / "new"))
    assert status == 0
    assert (
        said["Storage"].startswith("ok:")
        and said["Database"] == "ok: there is no catalog yet: the first start makes it"
    )
    assert said["Settings"] == "ok: none contradicts another"
    assert said["Python"].startswith("ok: 3.")
    assert not list(tmp_path.iterdir())


def test_catalog_that_is_there_is_opened_and_left_as_it_is(tmp_path: Path) -> None:
    with tiltyard.Namespace(str(tmp_path), jobs=0):
        pass
    before = files_below(tmp_path)
    status, said = examine("--root", str(tmp_path))
    assert status == 0
    assert said["Database"] == "ok: sqlite answers, and its schema is current"
    assert said["Clocks"].startswith("ok: the database's differs by 0.")
    assert said["Storage"] == f"ok: {tmp_path} can be written to"
    assert files_below(tmp_path) == before


def test_what_would_keep_a_server_from_starting_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, said = examine("--root", str(tmp_path / "file"), "--port", str(taken.getsockname()[1]))
    assert status == WRONG
    assert said["Port"].startswith("wrong:") and "choose another --port" in said["Port"]
    assert said["Storage"].startswith("wrong:") and "is not a folder" in said["Storage"]


@pytest.mark.parametrize(
    ("arguments", "environ", "subject", "text"),
    [
        (("--host", "0.0.0.0"), {}, "Access", "start it with --auth"),
        (("--host", "no.such.host.invalid"), {}, "Port", "cannot be listened on"),
        (("--tls-certificate", "none.pem", "--tls-key", "none.key"), {}, "Access", "Cannot serve HTTPS"),
        (("--db", "postgresql://nobody@127.0.0.1:1/none"), {}, "Database", "database"),
        (("--db", "mysql://x"), {}, "Database", "sqlite:///"),
        (("--root", "s3://none/tables"), {}, "Database", "set --db"),
        ((), {"TILTYARD_SECRET_KEYS": '["env:NO_SUCH_KEY"]'}, "Settings", "NO_SUCH_KEY"),
        ((), {"TILTYARD_DISK_CACHE_BYTES": "1000000"}, "Storage", "disk_cache_folder"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_wrong(
    tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str], subject: str, text: str
) -> None:
    place = () if "--root" in arguments else ("--root", str(tmp_path))
    storage = {"TILTYARD_STORAGE_OPTIONS": '{"aws_endpoint": "http://127.0.0.1:1", "allow_http": "true"}'}
    status, said = examine(*place, *arguments, environ=environ or storage)
    assert status == WRONG
    assert said[subject].startswith("wrong:") and text in said[subject]


def test_folder_of_temporary_files_whose_sockets_would_not_start_is_wrong_and_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / ("x" * MAX_TEMPORARY_PATH_BYTES)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    status, said = examine("--root", str(tmp_path / "new"))
    assert status == WRONG
    assert "set TMPDIR to a shorter one" in said["Temporary files"]
    check_exposure(Settings(root=str(tmp_path)), "127.0.0.1")
    assert "SQL will fail" in caplog.text and "set TMPDIR to a shorter one" in caplog.text


def test_settings_that_surprise_are_warnings_with_what_to_do(tmp_path: Path) -> None:
    environ = {
        "TILTYARD_JOBS": "0",
        "TILTYARD_RETENTION_DAYS": "0",
        "TILTYARD_UDFS": "true",
        "TILTYARD_SPARK": "local",
        "TILTYARD_WORKERS": "2",
        "TILTYARD_DISK_CACHE_FOLDER": str(tmp_path),
    }
    status, said = examine("--root", str(tmp_path / "new"), environ=environ)
    assert status == 0
    for setting in ("spark", "jobs", "retention_days", "udfs", "disk_cache_folder"):
        assert f"warning: {setting}" in said["Settings"]
    assert said["Settings"].count("→") == 5


@pytest.mark.parametrize(("gigabytes", "verdict"), [(1 << 20, "ok"), (4, "warning")])
def test_bounds_of_memory_that_do_not_fit_the_machine_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gigabytes: int, verdict: str
) -> None:
    size = gigabytes * 10**9
    monkeypatch.setattr(doctor, "read_system_memory", lambda: SystemMemory(size, size))
    status, said = examine("--root", str(tmp_path / "new"))
    assert status == 0 and said["Memory"].startswith(f"{verdict}: {gigabytes:,}.0 GB")
    assert ("Lower query_memory_bytes" in said["Memory"]) == (verdict == "warning")


def test_spark_without_java_is_wrong_where_it_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    status, said = examine("--root", str(tmp_path / "new"), "--spark", "local")
    assert status == WRONG and "set spark=off" in said["Spark"]
    status, said = examine("--root", str(tmp_path / "new"))
    assert status == 0 and said["Spark"].startswith("ok: off, as set")


def test_folder_in_memory_and_full_disk_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 1 << 60)
    environ = {"TILTYARD_SQL_SPILL_FOLDER": "/dev/shm"}
    status, said = examine("--root", str(tmp_path / "new"), "--sql-port", "auto", environ=environ)
    assert status == 0 and said["Port of SQL"].startswith("ok: the one after that of HTTP")
    assert said["Disk of the root"].startswith("warning:") and "Make room" in said["Disk of the root"]
    assert said["Disk that SQL spills to"].startswith("warning: /dev/shm is a file system in memory")


@pytest.mark.parametrize(("change", "status", "verdict"), [(-1, 0, "warning"), (1, WRONG, "wrong")])
def test_database_of_another_version_is_told_before_a_start(
    tmp_path: Path, change: int, status: int, verdict: str
) -> None:
    with tiltyard.Namespace(str(tmp_path), jobs=0):
        pass
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        database.execute(
            "DELETE FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)"
            if change < 0
            else "INSERT INTO schema_migrations VALUES (9999, 0)"
        )
    found, said = examine("--root", str(tmp_path))
    assert found == status
    assert said["Database"].startswith(f"{verdict}:") and "schema version" in said["Database"]
    assert ("db upgrade" if change < 0 else "Install") in said["Database"]
