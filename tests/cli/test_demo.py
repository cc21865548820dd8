"""`tiltyard demo` where it cannot start: a port that is taken, a folder with another table; another free port."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard
from tests.cli.conftest import run_command
from tests.services.ports import reserve_two_ports
from tiltyard.cli import demo


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((demo.HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_named_port_that_is_taken_is_refused_at_once(taken_port: int, tmp_path: Path) -> None:
    result = run_command("demo", "--root", str(tmp_path / "new"), "--port", str(taken_port))
    assert result.exit_code == 1
    assert f"127.0.0.1:{taken_port} (Address already in use)" in result.output
    assert "choose another --port, or leave it out" in result.output
    assert not list(tmp_path.iterdir())


def test_default_port_that_is_taken_is_replaced_by_a_free_one(
    taken_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "PORT", taken_port)
    assert demo._choose_port(None) == 0
    assert "the demo takes another one" in capsys.readouterr().err


def test_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run_command("demo", "--root", str(tmp_path / "file")).exit_code == 2


def test_folder_with_another_table_of_its_name_is_left_as_it_is(tmp_path: Path) -> None:
    with tiltyard.connect(str(tmp_path)) as lake:
        lake.create_table("films", pa.table({"n": [1]}))
    port, _reserved = reserve_two_ports()
    command = [sys.executable, "-m", "tiltyard", "demo", "--no-browser", "--root", str(tmp_path), "--port", str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"{tmp_path} has another table films: choose another --root." in done.stderr
    with tiltyard.connect(str(tmp_path)) as lake:
        assert lake.table("films").to_arrow().to_pylist() == [{"n": 1}]
