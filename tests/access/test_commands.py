"""`tiltyard grant`, `revoke`, `grants`, `whoami`, `can`, `role`: on the database, and on a server by URL and key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.services.forked_process import run_tiltyard
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream
from tiltyard.cli import main
from tiltyard_conformance.cases import ROWS


def run(*arguments: str) -> Result:
    """A command, in this process: each start of another costs seconds."""
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("commands")) as running:
        wire = running.wire("administrator")
        wire.good(wire.namespace(["sales"], "create"))
        wire.good(wire.table(["sales", "orders"], "declare"))
        yield running


@pytest.fixture(params=["database", "server"])
def reach(request: pytest.FixtureRequest, secured: Secured) -> list[str]:
    if request.param == "database":
        return ["--root", str(Path(secured.server.root))]
    return ["--url", secured.url, "--key", secured.keys["administrator"]]


def test_grants_and_roles_are_given_listed_and_taken_back(secured: Secured, reach: list[str]) -> None:
    table = ["--on", "table:sales$orders"]
    assert run("role", "add", "analysts", *reach).stdout == "analysts is a role.\n"
    assert run("role", "add", "analysts", "ann", "group:night", *reach).exit_code == 0
    assert run("role", "list", *reach).stdout == "analysts  group:night principal:ann\n"
    assert run("grant", "read,drop", *table, "--to", "role:analysts", *reach).stdout == (
        "role:analysts has read, drop on table:sales$orders\n"
    )
    assert run("grants", *table, *reach).stdout.startswith("table:sales$orders  role:analysts  read,drop  by ")
    assert run("grants", "--to", "role:analysts", *reach).stdout.startswith("table:sales$orders  role:analysts")
    assert (yes := run("can", "ann", "read", *table, *reach)).exit_code == 0 and yes.stdout == "yes\n"
    no = run("can", "ann", "write", *table, *reach)
    assert no.exit_code == 3 and no.stdout == "no: write is missing; there is use, read, drop\n"
    assert run("can", "bob", "drop", *table, "--group", "night", *reach).exit_code == 0
    run("revoke", "drop", *table, "--to", "role:analysts", *reach)
    assert run("can", "ann", "drop", *table, *reach).exit_code == 3
    assert run("role", "remove", "analysts", "ann", *reach).exit_code == 0
    assert run("can", "ann", "read", *table, *reach).exit_code == 3
    assert run("role", "remove", "analysts", *reach).stdout == "analysts is dropped.\n"
    assert run("grants", *table, *reach).stdout == ""


def test_whoami_and_can_by_a_key_of_ones_own(secured: Secured) -> None:
    reach = ["--url", secured.url, "--key", secured.keys["ann"]]
    done = run_tiltyard("whoami", "--url", secured.url, TILTYARD_KEY=secured.keys["ann"])
    assert done.returncode == 0 and done.stdout.startswith("principal:  ann\n")
    refused = run("can", "me", "read", "--on", "table:sales$orders", *reach)
    assert refused.exit_code == 4 and "not found" in refused.stderr
    refused = run("grant", "read", "--to", "ann", *reach)
    assert refused.exit_code == 5 and "manage_grants" in refused.stderr and len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says", "status"),
    [
        (("grant", "sing", "--to", "ann"), "not a privilege", 1),
        (("grant", "read", "--to", "role:nobodies"), "no role", 1),
        (("grant", "read", "--on", "table:none", "--to", "ann"), "not found", 4),
        (("grant", "read", "--on", "horse:none", "--to", "ann"), "kind of object", 1),
        (("role", "remove", "none"), "no role", 1),
    ],
)
def test_commands_that_cannot_be_say_why_in_one_sentence(
    secured: Secured, reach: list[str], arguments: tuple[str, ...], says: str, status: int
) -> None:
    done = run(*arguments, *reach)
    assert done.exit_code == status and says in done.stderr and len(done.stderr.splitlines()) == 1


def test_policies_are_set_listed_and_dropped(secured: Secured, reach: list[str]) -> None:
    wire = secured.wire("administrator")
    wire.http.post("/v1/table/sales$people/create", content=stream(ROWS))
    masks = ["--null", "text", "--mask", "vector=NULL"]
    result = run("policy", "set", "sales$people", "own", "--filter", "id = 1", *masks, *reach)
    policy_line = "own  rows where id = 1; text: null; vector: NULL  by "
    assert result.exit_code == 0 and result.stdout.startswith(policy_line), result.output
    assert run("policy", "list", "sales$people", *reach).stdout == result.stdout
    refused = run("policy", "set", "sales$people", "new", "--mask", "id", *reach)
    assert refused.exit_code != 0 and "COLUMN=SQL" in refused.output
    dropped = run("policy", "drop", "sales$people", "own", *reach)
    assert (dropped.exit_code, dropped.stdout) == (0, "")
