"""Run every case through every client of one server, and report what was seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from typing import Any

import httpx
import lance.namespace
import lance_namespace_urllib3_client as generated

from tiltyard.model.spec import operations
from tiltyard_conformance.cases import World
from tiltyard_conformance.cases_of_jobs import CASES
from tiltyard_conformance.clients import NoSuchCallError, call_generated, call_http, call_rust

WORKS, NO_CALL = "works", "\N{EN DASH}"
CLIENTS = ("plain HTTP", "generated client", "Rust client")
PACKAGES = ("pylance", "lance-namespace-urllib3-client")

_OWN_WORDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|, /\S+\.rs:\d+:\d+")
"""What differs from run to run, or names a server's source files."""

_FAULTY_CALLS = {("AlterTransaction", call_rust)}
"""Calls that no server can answer: pylance passes actions by names that its Rust client does not know, and drops."""

Outcomes = dict[str, list[str]]
"""What each client saw of an operation, by its name, in the order of CLIENTS."""


class Http:
    """HTTP without a client library: what the wire really carries."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json={} if body is None else body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)


def outcome(call: Callable[[], None]) -> str:
    """Return what became of one call: that it works, that the client has none, or why it fails."""
    try:
        call()
    except NoSuchCallError:
        return NO_CALL
    except Exception as error:  # noqa: BLE001  # whatever went wrong is what the table says
        text = _OWN_WORDS.sub("…", str(error)).strip().splitlines()
        return f"fails: {text[0][:100] if text else type(error).__name__}"
    return WORKS


def run_cases(
    url: str,
    headers: Mapping[str, str] | None = None,
    storage: Mapping[str, str] | None = None,
    only: Collection[str] = (),
) -> Outcomes:
    """Run the cases of all operations, or of some, against a server.

    `headers` go with each request; `storage` are the options by which Lance opens the server's tables, for the cases
    that write files as clients do.
    """
    sent = dict(headers or {})
    world = World(Http(url, sent), dict(storage or {}))
    client = generated.ApiClient(generated.Configuration(host=url))
    client.default_headers.update(sent)
    rust = lance.namespace.RestNamespace(uri=url, **{f"header.{name}": value for name, value in sent.items()})
    callers: tuple[tuple[Callable[..., Any], Any], ...] = (
        (call_http, world.raw.http),
        (call_generated, client),
        (call_rust, rust),
    )

    def run(case: Any, caller: Callable[..., Any], by: Any) -> None:
        if (case.operation, caller) in _FAULTY_CALLS:
            raise NoSuchCallError(case.operation)
        fields = case.prepare(world)
        case.check(world, fields, caller(by, case, fields))

    return {
        case.operation: [
            outcome(lambda case=case, caller=caller, by=by: run(case, caller, by))  # type: ignore[misc]
            for caller, by in callers
        ]
        for case in sorted(CASES, key=lambda case: (not _is_in_contract(case.operation), case.operation))
        if not only or case.operation in only
    }


def _is_in_contract(operation: str) -> bool:
    return operations()[operation].in_contract


def failures(outcomes: Outcomes) -> list[str]:
    """Return the operations of the contract that no client could call, or that fail in one of them."""
    return [name for name, cells in outcomes.items() if _is_in_contract(name) and summary(cells) != WORKS]


def summary(cells: list[str]) -> str:
    """Return one cell for all clients: that all work which have a call, or the first failure."""
    return next((cell for cell in cells if cell not in (WORKS, NO_CALL)), WORKS if WORKS in cells else NO_CALL)


def seen_with() -> str:
    """Return the versions of the clients."""
    return "Seen with " + ", ".join(f"{name} {version(name)}" for name in PACKAGES) + "."


def markdown(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table of operations with a column for each title; ¹ marks what is not in the contract."""
    names = list(dict.fromkeys(name for cells in columns.values() for name in cells))
    lines = [
        "| operation | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
        *(
            f"| {name}{'' if _is_in_contract(name) else ' ¹'} | "
            + " | ".join(_escape(cells.get(name, NO_CALL)) for cells in columns.values())
            + " |"
            for name in names
        ),
    ]
    return "\n".join(lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")
