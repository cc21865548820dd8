"""`tiltyard publish-to …`, on the database and on a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lance_namespace
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from lance_namespace import ListTablesRequest

from tests.mounts.backends import new_name
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream
from tiltyard.cli import main


@dataclass
class Reach:
    """A catalog's database or server, as options of a command; `folder` is the target, with our tables in it."""

    secured: Secured
    options: list[str]
    folder: Path

    def run(self, *arguments: str) -> Result:
        """Run a command, in this process."""
        return CliRunner().invoke(main, ["publish-to", *arguments, *self.options])

    def namespace(self, *tables: str) -> str:
        """Create a namespace with tables."""
        name = new_name("ns")
        wire = self.secured.wire("administrator")
        wire.good(wire.namespace([name], "create"))
        for table in tables:
            wire.good(wire.table([name, table], "create", stream(pa.table({"x": [1]}))))
        return name

    def published(self, namespace: str) -> list[str]:
        """Return the tables that stock clients find there."""
        properties = {"root": str(self.folder), "dir_listing_enabled": "false"}
        client = lance_namespace.connect("dir", properties)
        return sorted(client.list_tables(ListTablesRequest(id=[namespace])).tables)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("publishing")) as running:
        yield running


@pytest.fixture(params=["database", "server"])
def reach(request: pytest.FixtureRequest, secured: Secured) -> Reach:
    root = Path(secured.server.root)
    options = ["--root", str(root)]
    if request.param == "server":
        options = ["--url", secured.url, "--key", secured.keys["administrator"]]
    return Reach(secured, options, root)


def test_a_publication_is_added_synced_listed_and_removed(reach: Reach) -> None:
    namespace, name = reach.namespace("a", "b"), new_name("publication")
    added = reach.run(
        "add", name, "dir", str(reach.folder), "--set", "mode=manifest", "--namespace", namespace, "--columns"
    )
    assert added.exit_code == 0, added.output
    line = f"{name}  dir  root={reach.folder}  mode=manifest  namespace={namespace}  columns  tables="
    assert added.stdout.startswith(line)
    assert reach.run("sync", name).stdout == f"{line}2  in step\n"
    assert reach.published(namespace) == ["a", "b"]
    assert f"{line}2  in step" in reach.run("list").stdout.splitlines()
    assert reach.run("remove", name).stdout == f"{name} is removed.\n"
    assert reach.published(namespace) == ["a", "b"]


def test_remove_entries_removes_them(reach: Reach) -> None:
    namespace, name = reach.namespace("a"), new_name("publication")
    reach.run("add", name, "dir", str(reach.folder), "--set", "mode=manifest", "--namespace", namespace)
    assert reach.run("sync", name).exit_code == 0
    assert reach.run("remove", name, "--remove-entries").stdout == f"{name} is removed.\n"
    assert reach.published(namespace) == []


def test_sync_says_which_tables_have_a_problem(reach: Reach) -> None:
    namespace, name = reach.namespace("ä"), new_name("publication")
    reach.run("add", name, "dir", str(reach.folder), "--set", "mode=manifest", "--namespace", namespace)
    synced = reach.run("sync", name)
    assert synced.exit_code == 3
    first, problem = synced.stdout.splitlines()
    assert "tables=0  in step" in first
    assert problem.startswith(f"  {namespace}$ä: A directory cannot hold the name 'ä'")
    reach.run("remove", name)


def test_all_tables_and_a_target(reach: Reach) -> None:
    namespace, name, target = reach.namespace("a"), new_name("publication"), new_name("target")
    added = reach.run(
        "add", name, "dir", str(reach.folder), "--set", "mode=manifest", "--namespace", "$", "--target", target
    )
    assert f"namespace=$  target={target}" in added.stdout, added.output
    reach.run("sync", name)
    properties = {"root": str(reach.folder), "dir_listing_enabled": "false"}
    client = lance_namespace.connect("dir", properties)
    assert list(client.list_tables(ListTablesRequest(id=[target, namespace])).tables) == ["a"]
    assert reach.run("remove", name, "--remove-entries").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("sync", "nothing"), "There is no publication 'nothing'"),
        (("remove", "nothing"), "There is no publication 'nothing'"),
        (("add", "x", "dir", "/nowhere/at/all"), "not below the server's root"),
        (("add", "x", "glue", "https://glue.example.org"), "has no URI"),
        (("add", "x", "dir", ".", "--set", "mode"), "is not NAME=VALUE"),
    ],
)
def test_a_command_that_cannot_be_run_says_why(reach: Reach, arguments: tuple[str, ...], sentence: str) -> None:
    result = reach.run(*arguments)
    assert result.exit_code in (1, 2, 5)
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_who_is_no_administrator_may_not_publish(secured: Secured) -> None:
    key = next(value for name, value in secured.keys.items() if name != "administrator")
    result = CliRunner().invoke(main, ["publish-to", "list", "--url", secured.url, "--key", key])
    assert result.exit_code == 5 and "administer" in result.stderr


def test_a_publication_has_no_secret_in_plain_text(reach: Reach) -> None:
    result = reach.run("add", "x", "lance", "http://127.0.0.1:1", "--set", "token=hidden-word")
    assert result.exit_code == 1 and "plain text" in result.stderr
    assert "hidden-word" not in result.output
    assert json.dumps("hidden-word") not in reach.run("list").output
