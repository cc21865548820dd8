"""Write docs/compatibility.md from a run: every operation and every client, with what was seen.

python -m tests.conformance.compatibility [--check] [--only PART]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lance.namespace
import lance_namespace_urllib3_client as generated_client
import lancedb

from tests.conformance import duckdb_lance, engines, lance_spark, lancedb_typescript, sql_clients, vector_stores
from tests.conformance.conftest import Raw
from tests.conformance.lancedb_calls import BOTH, REMOTE
from tests.conformance.observations import THEIRS, ServerObservations, markdown
from tests.conformance.packages import NoWheelError
from tests.conformance.peers import suites
from tests.conformance.summary import Tally, tally_calls, with_tallies
from tests.services.server import ServerProcess
from tiltyard.model.spec import operations
from tiltyard_conformance.cases import World
from tiltyard_conformance.cases_of_jobs import CASES
from tiltyard_conformance.clients import NoSuchCallError, call_generated, call_http, call_rust
from tiltyard_conformance.report import failures, run_cases, seen_with, summary
from tiltyard_conformance.report import markdown as columns_markdown

TARGET = Path(__file__).parents[2] / "docs/compatibility.md"
OWN = "/tiltyard/"
"""Operations of Tiltyard alone, which no stock client has a call for."""
WORKS, NO_CALL = "works", "\N{EN DASH}"
CLIENTS = {
    "plain HTTP": "",
    "generated client": "lance-namespace-urllib3-client",
    "Rust client": "pylance",
    "lancedb remote": "lancedb",
    "lancedb namespace": "lancedb",
}
"""Clients that make a call for each operation, and their packages."""
Observer = tuple[str, Callable[[], Sequence[ServerObservations]]]
ENGINES: dict[str, Observer] = {
    "lance-spark": (lance_spark.ABOUT, lance_spark.observe),
    "DuckDB": (duckdb_lance.ABOUT, duckdb_lance.observe),
    **{name: (engine.about, partial(engines.observe, name)) for name, engine in engines.ENGINES.items()},
}
"""Clients whose statements or calls are observed: what they were seen with, and how. Each has a table of its own, and a
column for the operations that it requests."""
OTHERS: dict[str, Observer] = {
    **{name: (sql_clients.ABOUT[name], partial(sql_clients.observe, name)) for name in sql_clients.ABOUT},
    **{name: (vector_stores.about(name), partial(vector_stores.observe, name)) for name in vector_stores.PACKAGES},
}
"""Clients of SQL, which request no operation by HTTP, and those that go by lancedb: a table each, and no column."""
_observations: dict[str, Sequence[ServerObservations]] = {}
"""What this run observed of engines, by their names."""
SKIPPED = "not run"
"""What is said of an engine or a suite that cannot be run here: what was seen elsewhere stays."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run saw for a part of the page: its text, how many calls of each client ended how, and our failures."""

    content: str
    tallies: Sequence[Tally]
    failures: Sequence[str]


BY_CLIENT = {
    ("AlterTransaction", "Rust client"): (
        "Each action does exactly one thing",
        "its Python passes actions by names that its Rust code does not know",
    )
}
"""Calls that fail by a client, at any server: a part of the error, and the fault."""


def seen(call: Callable[[], None]) -> str:
    """Return the outcome of one call."""
    try:
        call()
    except NoSuchCallError:
        return NO_CALL
    except Exception as error:  # noqa: BLE001  # whatever went wrong is what the table says
        text = str(error).strip().splitlines()
        return f"fails: {text[0][:100] if text else type(error).__name__}"
    return WORKS


def observe(url: str) -> dict[str, list[str]]:
    """Every operation through every client."""
    world = World(Raw(url), {})
    generated = generated_client.ApiClient(generated_client.Configuration(host=url))
    rust = lance.namespace.RestNamespace(uri=url)
    remote = lancedb.connect("db://tests", api_key="none", host_override=url)
    local = lancedb.connect_namespace("rest", {"uri": url})
    cases = {case.operation: case for case in CASES}

    def stock(name: str, caller: Any, client: Any) -> str:
        if name not in cases:
            return NO_CALL

        def call() -> None:
            fields = cases[name].prepare(world)
            cases[name].check(world, fields, caller(client, cases[name], fields))

        return seen(call)

    def judged(name: str, client: str, outcome: str) -> str:
        text, fault = BY_CLIENT.get((name, client), ("", ""))
        return f"{THEIRS}{fault}" if fault and text in outcome else outcome

    def own(calls: Any, name: str, client: Any) -> str:
        return seen(lambda: calls[name](world, client)) if name in calls else NO_CALL

    calls: dict[str, Callable[[str], str]] = {
        "plain HTTP": lambda name: stock(name, call_http, world.raw.http),
        "generated client": lambda name: stock(name, call_generated, generated),
        "Rust client": lambda name: stock(name, call_rust, rust),
        "lancedb remote": lambda name: own(REMOTE, name, remote),
        "lancedb namespace": lambda name: own(BOTH, name, local),
    }
    return {
        name: [judged(name, client, calls[client](name)) for client in CLIENTS]
        for name, facts in operations().items()
        if not facts.path.startswith(OWN)
    }


def requested_operations(observations: Sequence[ServerObservations]) -> set[str]:
    """Return the operations that the calls of an engine requested, of those that work."""
    works = (call for server in observations for call in server.calls if call.outcome == WORKS)
    return {operation for call in works for operation in call.operations}


def operations_of_engines() -> dict[str, set[str]]:
    """Return the operations that each engine requests: as observed in this run, else as an earlier one has written."""
    rows = [line.strip("| ").split(" | ") for line in content_of(TARGET.read_text(), OPERATIONS).splitlines()]
    titles = next((row for row in rows if row[0] == "operation"), [])
    operations_of = {}
    for name in ENGINES:
        if name in _observations:
            operations_of[name] = requested_operations(_observations[name])
        elif name in titles:
            at = titles.index(name)
            cells = (row for row in rows if len(row) == len(titles) and row[at] == WORKS)
            operations_of[name] = {row[0].removesuffix(" ¹") for row in cells}
    return operations_of


def table(observed: dict[str, list[str]]) -> str:
    """The observations as Markdown."""
    contract = {name: "" if facts.in_contract else " ¹" for name, facts in operations().items()}
    clients = (*CLIENTS, *operations_of_engines())
    lines = [
        "Seen with "
        + ", ".join(f"{name} {version(name)}" for name in ("pylance", "lancedb", "lance-namespace-urllib3-client"))
        + ".\n",
        "| operation | " + " | ".join(clients) + " |",
        "|---" * (len(clients) + 1) + "|",
        *(f"| {name}{contract[name]} | " + " | ".join(cells) + " |" for name, cells in observed.items()),
    ]
    return "\n".join(lines)


def observed_operations() -> Seen:
    """Return the table of every operation; engines that this run did not observe keep their columns."""
    with tempfile.TemporaryDirectory() as root:
        server = ServerProcess(root)
        observed = observe(server.url)
        server.stop()
    tallies = [tally_column(client, [cells[at] for cells in observed.values()]) for at, client in enumerate(CLIENTS)]
    for requested in operations_of_engines().values():
        for operation, cells in observed.items():
            cells.append(WORKS if operation in requested else NO_CALL)
    failed = [f"{name}: {cells}" for name, cells in observed.items() if any(cell.startswith("fails") for cell in cells)]
    return Seen(table(observed), tallies, failed)


def tally_column(client: str, cells: Sequence[str]) -> Tally:
    """Count the operations of a client: one that it has no call for is none."""
    versions = f"{CLIENTS[client]} {version(CLIENTS[client])}" if CLIENTS[client] else NO_CALL
    theirs, fails = (sum(cell.startswith(start) for cell in cells) for start in (THEIRS, "fails"))
    section = "every-operation-every-client"
    return Tally(client, section, versions, cells.count(WORKS), by_client=theirs, by_server=fails)


def observed_servers() -> Seen:
    """The table of `tiltyard-conformance` for two servers, and our failures in it."""
    with tempfile.TemporaryDirectory() as root:
        server = ServerProcess(root)
        ours = run_cases(server.url)
        server.stop()
    with (
        tempfile.TemporaryDirectory() as root,
        lance.namespace.RestAdapter("dir", {"root": root}, port=0) as adapter,
    ):
        theirs = run_cases(f"http://127.0.0.1:{adapter.port}")
    columns = {
        title: {name: summary(cells) for name, cells in outcomes.items()}
        for title, outcomes in (("Tiltyard", ours), (f"RestAdapter {version('pylance')}", theirs))
    }
    counts = [f"{title}: {list(cells.values()).count(WORKS)} of {len(cells)}" for title, cells in columns.items()]
    return Seen(f"{seen_with()} {'; '.join(counts)}.\n\n{columns_markdown(columns)}", [], failures(ours))


def part_of(name: str) -> str:
    """Return the name of a client's part of the page, which is the anchor of its section."""
    return name.lower().replace(" ", "-")


def observed_calls(name: str) -> Seen | None:
    """Return the table of a client's calls, and the failures in it; None where it cannot run here."""
    about, observe_engine = {**ENGINES, **OTHERS}[name]
    try:
        observations = _observations[name] = observe_engine()
    except NoWheelError as error:
        sys.stdout.write(f"{name}: {SKIPPED}: {error}\n")
        return None
    failed = [
        f"{server.title}: {call.call}: {call.outcome}"
        for server in observations
        for call in server.calls
        if not call.is_expected
    ]
    versions = about.removeprefix("Seen with ").removesuffix(".")
    tally = tally_calls(name, part_of(name), versions, observations)
    return Seen(f"{about}\n\n{markdown(observations)}", [tally], failed)


def observed_typescript() -> Seen | None:
    """Return which calls of lancedb's client for TypeScript work; None where npm reaches no registry."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = lancedb_typescript.install(Path(folder))
        except lancedb_typescript.NoRegistryError as error:
            sys.stdout.write(f"TypeScript: {SKIPPED}: {error}\n")
            return None
        server = ServerProcess(Path(folder) / "root")
        try:
            outcomes = lancedb_typescript.run(program, server.url)
        finally:
            server.stop()
    versions = f"{lancedb_typescript.PACKAGE} {lancedb_typescript.package_version()}"
    works = [call for call, error in outcomes.items() if error is None]
    failed = [f"{call}: {' '.join(error.split())[:100]}" for call, error in outcomes.items() if error is not None]
    lines = [f"Seen with {versions}. These calls work: {', '.join(f'`{call}`' for call in works)}.", *failed]
    section = "lancedb-for-typescript"
    tally = Tally("lancedb for TypeScript", section, versions, len(works), by_server=len(failed))
    return Seen("\n\n".join(lines), [tally], failed)


def observed_suite(name: str) -> Seen | None:
    """Return the outcomes of another project's tests, and the failures that are not expected."""
    result = suites.observe(name)
    if result.skipped:
        sys.stdout.write(f"{result.suite.title}: {SKIPPED}: {result.skipped}\n")
        return None
    works, *others = result.counts
    versions = f"{result.client}, tests of {result.suite.project.version}"
    tally = Tally(f"{result.suite.title}: its own tests", "other-projects-own-tests", versions, works, *others)
    return Seen(suites.table(result), [tally], suites.failures(result))


OPERATIONS = "operations"
"""The part that has a column for each engine: run when they were."""
PARTS: dict[str, Callable[[], Seen | None]] = {
    OPERATIONS: observed_operations,
    "servers": observed_servers,
    "typescript": observed_typescript,
    **{part_of(name): partial(observed_calls, name) for name in (*ENGINES, *OTHERS)},
    **{f"tests-{name}": partial(observed_suite, name) for name in suites.SUITES},
}
SUMMARY = "summary"
"""The part of the page that is counted from the others."""
_DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b")


def marks(part: str) -> tuple[str, str]:
    return f"<!-- {part}: generated by `make compatibility` -->", f"<!-- end of {part} -->"


def content_of(text: str, part: str) -> str:
    """Return what the document has between the marks of a part."""
    start, end = marks(part)
    _, begin_mark, behind = text.partition(start)
    content, end_mark, _ = behind.partition(end)
    assert begin_mark and end_mark, f"{TARGET.name} has no place for {part}"
    return content


def put(text: str, part: str, content: str) -> str:
    """Return the document with a part of it written anew, between its marks."""
    start, end = marks(part)
    return text.replace(f"{start}{content_of(text, part)}{end}", f"{start}\n\n{content}\n\n{end}")


def renewed(text: str, observed: Mapping[str, Seen], day: date) -> str:
    """Return the document with the parts that were run written anew, and the rows of their clients in the summary."""
    for part, found in observed.items():
        text = put(text, part, f"{found.content}\n\nRun on {day.isoformat()}.")
    tallies = [tally for found in observed.values() for tally in found.tallies]
    return put(text, SUMMARY, with_tallies(content_of(text, SUMMARY), tallies, day))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: python -m tests.conformance.compatibility")
    parser.add_argument("--only", action="append", choices=PARTS, help="look at this part; may be given again")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not what was seen")
    arguments = parser.parse_args()
    found = {part: PARTS[part]() for part in sorted(arguments.only or PARTS, key=lambda part: part == OPERATIONS)}
    observed = {part: part_seen for part in PARTS if (part_seen := found.get(part)) is not None}
    before = TARGET.read_text()
    after = renewed(before, observed, datetime.now(UTC).date())
    if arguments.check and _DAY.sub("", after) != _DAY.sub("", before):
        sys.exit(f"{TARGET.name} is not what this run saw: run `make compatibility`")
    TARGET.write_text(after)
    failures = [failure for part_seen in observed.values() for failure in part_seen.failures]
    sys.stdout.write("".join(f"{failure}\n" for failure in failures) or "no failures\n")


if __name__ == "__main__":
    main()
