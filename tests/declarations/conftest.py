"""Servers with everything that a file can declare, and commands on them as their principals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.services.secured import Secured, secured_server
from tiltyard.calls.http_caller import HttpCaller, key_headers
from tiltyard.cli import main

ENVIRON = {"TILTYARD_UDFS": "true"}


@dataclass(frozen=True)
class Catalog:
    """A server, and commands on it."""

    secured: Secured

    def calls(self, name: str = "administrator") -> HttpCaller:
        """Call operations as one of its principals."""
        return HttpCaller(self.secured.url, key_headers(self.secured.keys[name]))

    def run(self, *arguments: str | Path, name: str = "administrator", environ: dict[str, str] | None = None) -> Result:
        """Run a command as one of its principals; what it fails with besides an exit status is raised."""
        variables = {"TILTYARD_SERVER": self.secured.url, "TILTYARD_KEY": self.secured.keys[name], **(environ or {})}
        result = CliRunner().invoke(main, [str(each) for each in arguments], env=variables)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def apply(self, file: Path, *options: str, name: str = "administrator") -> str:
        """Apply a file, which has to succeed; return what was printed."""
        result = self.run("apply", file, *options, name=name)
        assert result.exit_code == 0, result.output
        return result.stdout

    def export(self, file: Path, name: str = "administrator") -> str:
        """Export the catalog to a file; return its text."""
        result = self.run("export", file, "--force", name=name)
        assert result.exit_code == 0, result.output
        return file.read_text()

    def wait_for_indexes(self, *tables: list[str]) -> None:
        """Wait until all indexes of the tables are built."""
        with self.calls() as calls:
            for table in tables:
                deadline = time.monotonic() + 60
                while any(each["status"] != "done" for each in calls.entries("ListTableIndices", "indexes", id=table)):
                    assert time.monotonic() < deadline, "the indexes are not built"
                    time.sleep(0.1)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep profiles in a folder of the test; take nothing from the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("SERVER", "ROOT", "DB", "KEY", "PROFILE", "CONFIG"):
        monkeypatch.delenv(f"TILTYARD_{name}", raising=False)


NewCatalog = Callable[[Path], AbstractContextManager[Catalog]]


@contextmanager
def new_catalog(root: Path, **environ: str) -> Iterator[Catalog]:
    """Start a server without anything in its catalog."""
    with secured_server(root, environ={**ENVIRON, **environ}) as secured:
        yield Catalog(secured)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """A server for a whole file."""
    with new_catalog(tmp_path_factory.mktemp("catalog")) as catalog:
        yield catalog


def write(file: Path, text: str) -> Path:
    """Write a catalog's file."""
    file.write_text(f"version: 1\n{text}")
    return file


def entries(catalog: Catalog, operation: str, field: str, **fields: Any) -> list[Any]:
    """What an operation lists for the administrator."""
    with catalog.calls() as calls:
        return list(calls.entries(operation, field, **fields))
