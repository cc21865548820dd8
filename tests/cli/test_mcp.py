"""`tiltyard mcp`, driven by the client of the package `mcp`: on standard input and output, by HTTP, and in process."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pyarrow as pa
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from tests.cli.conftest import FILMS, printed, refused, run_command, wait_for
from tests.services.forked_process import ForkedProcess
from tests.services.ports import reserve_port
from tests.services.secured import Secured, secured_server
from tests.services.server import ServerProcess
from tiltyard.calls.http_caller import HttpCaller, key_headers
from tiltyard.cli.mcp.bounded_answers import MAX_ANSWER_BYTES
from tiltyard.cli.mcp.protocol import make_server
from tiltyard.cli.mcp.tools import TOOLS

Tool = Callable[..., Awaitable[CallToolResult]]
Scenario = Callable[[Client], Awaitable[None]]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with keys; ann may read `library`, bob `bound` alone, within a policy on its table."""
    with secured_server(tmp_path_factory.mktemp("mcp")) as secured:
        catalog = HttpCaller(secured.url, key_headers(secured.keys["administrator"]))
        catalog.call("CreateNamespace", id=["library"])
        catalog.call("CreateNamespace", id=["bound"])
        catalog.write("CreateTable", FILMS.to_reader(), "1", id=["library", "films"])
        catalog.write("CreateTable", FILMS.to_reader(), "2", id=["secret"])
        catalog.call("CreateTableIndex", id=["library", "films"], column="text", index_type="FTS")
        wait_for(lambda: bool(catalog.call("ListTableIndices", id=["library", "films"])["indexes"]))
        catalog.call("GrantPrivileges", object_kind="namespace", id=["library"], grantee="ann", privileges=["read"])
        catalog.write("CreateTable", FILMS.to_reader(), "3", id=["bound", "films"])
        query = "SELECT * FROM bound.films"
        catalog.call("CreateView", id=["bound", "all"], query=query)
        masks = [{"column": "title", "mask": "null"}]
        classified = {"object_kind": "column", "column": "text", "key": "pii"}
        catalog.call("SetClassification", id=["bound", "films"], **classified)
        catalog.call("SetClassificationPolicy", name="personal", key="pii", mask="hide")
        catalog.call("SetTablePolicy", id=["bound", "films"], name="own", filter="year > 1955", masks=masks)
        catalog.call("GrantPrivileges", object_kind="namespace", id=["bound"], grantee="bob", privileges=["read"])
        catalog.close()
        yield secured


def key_header(secured: Secured, name: str = "administrator") -> dict[str, str]:
    return {"x-api-key": secured.keys[name]}


def use(transport: Any, scenario: Scenario) -> None:
    """Run a scenario with a client."""

    async def run() -> None:
        async with Client(transport) as client:
            await scenario(client)

    anyio.run(run)


async def answer(client: Client, name: str, **arguments: Any) -> Any:
    """Return what a tool answered."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def failure(client: Client, name: str, **arguments: Any) -> str:
    """Return the sentence with which a tool failed."""
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.structured_content
    return str(result.content[0].text)  # type: ignore[union-attr]


async def look_around(client: Client) -> None:
    """Use each tool once, with the privileges of the administrator."""
    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == ["list", "describe", "search", "query", "count", "sql"]
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed)
    entries = (await answer(client, "list"))["entries"]
    names = {"bound": "namespace", "library": "namespace", "secret": "table"}
    assert entries == [{"id": name, "kind": kind} for name, kind in names.items()]
    described = await answer(client, "describe", id="library.films")
    assert (described["rows"], described["version"]) == (4, 2)
    assert {"column": "title", "type": "string"}.items() <= described["columns"][1].items()
    found = await answer(client, "search", table="library.films", text="whale")
    assert [row["title"] for row in found["rows"]] == ["Moby Dick"] and "vector" not in found["rows"][0]
    found = await answer(client, "search", table="library.films", vector=[0.9, 0.1], where="year > 1955", limit=1)
    assert found["rows"][0]["title"] == "Vertigo"
    found = await answer(client, "search", table="library.films", text="whale", like="id = 2", limit=2)
    assert {row["title"] for row in found["rows"]} == {"Moby Dick", "Up"}
    rows = await answer(
        client, "query", table="library.films", where="year < 1958", columns=["title"], order_by="year:desc"
    )
    assert rows == {"rows": [{"title": "Moby Dick"}, {"title": "Roman Holiday"}]}
    assert (await answer(client, "count", table="library.films", where="year < 1958"))["count"] == 2
    summed = await answer(client, "sql", query="SELECT max(year) AS latest FROM library.films")
    assert summed == {"rows": [{"latest": 2009}]}
    assert "read" in (await failure(client, "sql", query="DROP TABLE library.films")).lower()


def test_client_on_standard_input_and_output_has_the_privileges_of_its_key(secured: Secured) -> None:
    environ = {**os.environ, "TILTYARD_SERVER": secured.url, "TILTYARD_KEY": secured.keys["administrator"]}
    arguments = ["-m", "tiltyard", "mcp"]
    use(StdioServerParameters(command=sys.executable, args=arguments, env=environ), look_around)


@pytest.fixture(scope="module")
def address(secured: Secured) -> Iterator[str]:
    """Where the tools are served by HTTP."""
    port, reserved = reserve_port()
    arguments = ["mcp", "--server", secured.url, "--http", f"127.0.0.1:{port}"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TILTYARD_")}
    process = ForkedProcess(arguments, environ, Path.cwd())
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, -signal.SIGTERM)
    reserved.close()
    said = process.stderr.read() + process.stdout.read()
    assert "Traceback" not in said and "tilt_" not in said, said


def over_http(address: str, **headers: str) -> Any:
    return streamable_http_client(address, http_client=httpx2.AsyncClient(headers=headers, timeout=60))


def test_each_request_over_http_has_the_privileges_of_its_own_key(secured: Secured, address: str) -> None:
    async def see_library_alone(client: Client) -> None:
        assert (await answer(client, "list"))["entries"] == [{"id": "library", "kind": "namespace"}]
        assert (await answer(client, "count", table="library.films"))["count"] == 4
        summed = await answer(client, "sql", query="SELECT count(*) AS n FROM library.films")
        assert summed["rows"] == [{"n": 4}]
        for tool, arguments in (("count", {"table": "secret"}), ("sql", {"query": "SELECT * FROM secret"})):
            message = await failure(client, tool, **arguments)
            assert "secret" in message and "Vertigo" not in message

    use(over_http(address, authorization=f"Bearer {secured.keys['ann']}"), see_library_alone)

    async def see_all(client: Client) -> None:
        assert (await answer(client, "count", table="secret"))["count"] == 4

    use(over_http(address, **{"x-api-key": secured.keys["administrator"]}), see_all)

    async def see_nothing(client: Client) -> None:
        assert "requires authentication" in await failure(client, "list")

    use(over_http(address), see_nothing)


def test_reader_with_a_hidden_column_gets_all_columns_that_it_may_see(secured: Secured, address: str) -> None:
    visible = set(FILMS.schema.names) - {"text"}

    async def look(client: Client) -> None:
        for name in ("bound.films", "bound.all"):
            described = await answer(client, "describe", id=name)
            assert {column["column"] for column in described["columns"] if "." not in column["column"]} == visible
            rows = (await answer(client, "query", table=name, order_by="year"))["rows"]
            assert rows and all(row["year"] > 1955 and row["title"] is None for row in rows)
            assert rows[0].keys() == visible - {"vector"}
            assert "text" in await failure(client, "query", table=name, columns=["text"])
            found = (await answer(client, "search", table=name, vector=[0.9, 0.1], limit=1))["rows"]
            assert found[0].keys() >= visible - {"vector"} and "text" not in found[0]
        assert (await answer(client, "describe", id="bound.films"))["rows"] == len(rows)
        summed = await answer(client, "sql", query='SELECT * FROM bound."all" ORDER BY year LIMIT 1')
        assert summed["rows"][0].keys() == visible

    use(over_http(address, **key_header(secured, "bob")), look)


def test_show_and_schema_of_a_reader_with_a_hidden_column(secured: Secured) -> None:
    options = ("--server", secured.url, "--key", secured.keys["bob"])
    shown = json.loads(printed(run_command("show", "bound.films", "--format", "json", *options)))
    assert (shown["rows"], shown["columns"]) == (3, 4) and "policies" in shown["left_out"].lower(), shown
    for name in ("bound.films", "bound.all"):
        columns = printed(run_command("schema", name, *options))
        assert "title" in columns and "text" not in columns
        assert "Vertigo" not in printed(run_command("head", name, *options))


def test_http_refuses_foreign_hosts_foreign_pages_and_large_bodies(address: str) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    with httpx.Client(headers=accept, timeout=60) as client:
        assert client.post(address, json=call, headers={"host": "evil.example"}).status_code == 421
        assert client.post(address, json=call, headers={"origin": "https://evil.example"}).status_code == 403
        assert client.post(address, content=b"[" * (2 << 20)).status_code == 413


def test_answers_are_bounded_and_arguments_are_checked(server: ServerProcess) -> None:
    """What no answer may hold: long texts, many bytes, vectors, more rows than fit."""
    catalog = HttpCaller(server.url)
    texts = ["x" * 3000 for _ in range(99)]
    large = pa.table(
        {
            "id": range(100),
            "text": ["y" * 100_000, *texts],
            "data": [bytes(50_000)] * 100,
            "vector": pa.array([[0.5] * 64] * 100, pa.list_(pa.float32(), 64)),
        }
    )
    catalog.write("CreateTable", large.to_reader(), "large", id=["large"])

    async def scenario(client: Client) -> None:
        rows = await answer(client, "query", table="large", limit=1000)
        assert 10 < len(rows["rows"]) < 100 and f"first {len(rows['rows'])}" in rows["left_out"]
        result = await client.call_tool("query", {"table": "large", "limit": 1000})
        assert len(result.content[0].text) < MAX_ANSWER_BYTES + 1000  # type: ignore[union-attr]
        first = rows["rows"][0]
        assert first["text"].endswith("(100000 characters)") and len(first["text"]) < 5000
        assert first["data"] == "<48.8 KiB>" and "vector" not in first
        named = await answer(client, "query", table="large", columns=["vector"], limit=1)
        assert named["rows"][0]["vector"] == [*[0.5] * 16, "… 64 in all"]

        listed = await answer(client, "list", limit=1)
        following = await answer(client, "list", limit=1, after=listed["entries"][0]["id"])
        assert listed["entries"] != following["entries"] and "after=" in listed["left_out"]
        assert "no zzz" in await failure(client, "list", after="zzz")

        assert "Did you mean films" in await failure(client, "count", table="filns")
        assert "limit" in await failure(client, "query", table="films", limit=1001)
        assert "unknown field" in await failure(client, "query", table="films", mode="delete")
        assert "table" in await failure(client, "query")
        assert "nope" in await failure(client, "query", table="films", where="nope = 1")
        assert "needs a text" in await failure(client, "search", table="films")
        assert "There is no tool 'drop'" in await failure(client, "drop", table="films")

    use(make_server(TOOLS, lambda headers: nullcontext(catalog)), scenario)
    catalog.call("DropTable", id=["large"])
    catalog.close()


def test_mcp_refuses_to_open_what_has_no_keys_to_other_machines(server: ServerProcess, tmp_path: Path) -> None:
    said = refused(run_command("mcp", "--server", server.url, "--http", "0.0.0.0:2444"), 1)
    assert "--auth" in said
    assert "127.0.0.1" in refused(run_command("mcp", "--root", str(tmp_path), "--http", "0.0.0.0:2444"), 2)
    assert "HOST:PORT" in refused(run_command("mcp", "--server", server.url, "--http", "2444"), 2)
    assert "no catalog" in refused(run_command("mcp", "--root", str(tmp_path / "none")), 4)
