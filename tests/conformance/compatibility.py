"""Write docs/compatibility.md from a run: every operation and every client, with what was seen.

python -m tests.conformance.compatibility [--check] [--only PART]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lance.namespace
import lance_namespace_urllib3_client as generated_client
import lancedb

from tests.conformance import lance_ray, lance_spark
from tests.conformance.conftest import Raw
from tests.conformance.lancedb_calls import BOTH, REMOTE
from tests.conformance.observations import ServerObservations, markdown
from tests.conformance.peers import suites
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
CLIENTS = ("plain HTTP", "generated client", "Rust client", "lancedb remote", "lancedb namespace")


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

    def own(calls: Any, name: str, client: Any) -> str:
        return seen(lambda: calls[name](world, client)) if name in calls else NO_CALL

    return {
        name: [
            stock(name, call_http, world.raw.http),
            stock(name, call_generated, generated),
            stock(name, call_rust, rust),
            own(REMOTE, name, remote),
            own(BOTH, name, local),
        ]
        for name, facts in operations().items()
        if not facts.path.startswith(OWN)
    }


def table(observed: dict[str, list[str]]) -> str:
    """The observations as Markdown."""
    contract = {name: "" if facts.in_contract else " ¹" for name, facts in operations().items()}
    lines = [
        "Seen with "
        + ", ".join(f"{name} {version(name)}" for name in ("pylance", "lancedb", "lance-namespace-urllib3-client"))
        + ".\n",
        "| operation | " + " | ".join(CLIENTS) + " |",
        "|---" * (len(CLIENTS) + 1) + "|",
        *(f"| {name}{contract[name]} | " + " | ".join(cells) + " |" for name, cells in observed.items()),
    ]
    return "\n".join(lines)


def observed_operations() -> tuple[str, list[str]]:
    """The table of every operation, and the failures in it."""
    with tempfile.TemporaryDirectory() as root:
        server = ServerProcess(root)
        observed = observe(server.url)
        server.stop()
    failed = [f"{name}: {cells}" for name, cells in observed.items() if any(cell.startswith("fails") for cell in cells)]
    return table(observed), failed


def observed_servers() -> tuple[str, list[str]]:
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
    return f"{seen_with()} {'; '.join(counts)}.\n\n{columns_markdown(columns)}", failures(ours)


def observed_calls(about: str, observations: Sequence[ServerObservations]) -> tuple[str, list[str]]:
    """Return the table of an engine's calls, and the failures in it."""
    failed = [
        f"{server.title}: {call.call}: {call.outcome}"
        for server in observations
        for call in server.calls
        if not call.is_expected
    ]
    return f"{about}\n\n{markdown(observations)}", failed


def observed_suites() -> tuple[str, list[str]]:
    """Return the scoreboard of other projects' tests, and the failures that are not expected."""
    results = suites.observe()
    for result in results:
        if result.skipped:
            sys.stdout.write(f"{result.suite.title}: skipped: {result.skipped}\n")
    return suites.table(results), suites.failures(results)


PARTS: dict[str, Callable[[], tuple[str, list[str]]]] = {
    "operations": observed_operations,
    "servers": observed_servers,
    "lance-spark": lambda: observed_calls(lance_spark.ABOUT, lance_spark.observe()),
    "lance-ray": lambda: observed_calls(f"Seen with lance-ray {version('lance-ray')}.", lance_ray.observe()),
    "suites": observed_suites,
}


def put(text: str, part: str, content: str) -> str:
    """The document with a part of it written anew, between its marks."""
    start, end = f"<!-- {part}: generated by `make compatibility` -->", f"<!-- end of {part} -->"
    head, begin_mark, behind = text.partition(start)
    _, end_mark, tail = behind.partition(end)
    assert begin_mark and end_mark, f"{TARGET.name} has no place for {part}"
    return f"{head}{start}\n\n{content}\n\n{end}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: python -m tests.conformance.compatibility")
    parser.add_argument("--only", action="append", choices=PARTS, help="look at this part; may be given again")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not what was seen")
    arguments = parser.parse_args()
    observed = {part: PARTS[part]() for part in arguments.only or PARTS}
    before = after = TARGET.read_text()
    for part, (content, _) in observed.items():
        if suites.NOT_RUN not in content:  # what was seen with the sources stays
            after = put(after, part, content)
    if arguments.check and after != before:
        sys.exit(f"{TARGET.name} is not what this run saw: run `make compatibility`")
    TARGET.write_text(after)
    failures = [failure for _, failed in observed.values() for failure in failed]
    sys.stdout.write("".join(f"{failure}\n" for failure in failures) or "no failures\n")


if __name__ == "__main__":
    main()
