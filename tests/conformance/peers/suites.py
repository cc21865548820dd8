"""Run the tests of lancedb, lance and lance-ray, from their own sources, against a running server.

python -m tests.conformance.peers.suites [--only NAME] [--keep FOLDER]

The sources are fetched, or taken from the folder that PEER_SUITES names; what cannot be had is skipped, with one line.
The plug-ins of `plugins/` connect the tests to the server; `lists/` says which do not apply and which fail, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tests.conformance.peers.sources import Project, SourcesMissingError, install_packages
from tests.services.server import ServerProcess

HERE = Path(__file__).parent
SUITE_SECONDS = 7200

WORKER_SECONDS = 600
"""How long a worker of Ray may take to start; a test may have to wait for two."""

LANCEDB = Project(
    "lancedb", "https://github.com/lancedb/lancedb", "45cd05347846bc2280103680e497e8fc0cdf480e", "0.38.0-beta.4"
)
LANCE = Project("lance", "https://github.com/lancedb/lance", "d2039d750a6a296585e7fca63428fb2139c7acd0", "1.0.0-beta.1")
LANCE_RAY = Project(
    "lance-ray", "https://github.com/lance-format/lance-ray", "81e86f74cb8f0ccea92cc3aa7a67ec9893031e90", "0.5.0"
)


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of a project: where they are, the plug-in that connects them, and the client that they use.

    With `baseline`, they are run on a folder first: a test that fails there, too, says nothing of a server. It was
    written for another version of the client than the installed one.
    """

    title: str
    project: Project
    plugin: str
    connection: str
    client: str
    list_name: str
    folder: str = "."
    tests: Sequence[str] = ()
    options: Sequence[str] = ()
    baseline: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    test_seconds: int = 120


_LANCEDB_TESTS = {
    "project": LANCEDB,
    "plugin": "peer_lancedb",
    "client": "lancedb",
    "folder": "python",
    "tests": ("python/tests",),
    "options": ("-m", "not slow and not s3_test"),
    "baseline": True,
}
SUITES = {
    "remote": Suite("lancedb, by `db://`", connection="remote", list_name="lancedb_remote", **_LANCEDB_TESTS),  # type: ignore[arg-type]
    "namespace": Suite(
        "lancedb, by `connect_namespace`",
        connection="namespace",
        list_name="lancedb_namespace",
        **_LANCEDB_TESTS,  # type: ignore[arg-type]
    ),
    "lance": Suite(
        "lance's namespaces, by `RestNamespace`",
        LANCE,
        "peer_lance",
        "rest",
        "pylance",
        "lance",
        "python",
        ("python/tests/test_namespace_rest.py", "python/tests/test_namespace_dir.py"),
    ),
    "lance-ray": Suite(
        "lance-ray",
        LANCE_RAY,
        "peer_lance_ray",
        "rest",
        "lance-ray",
        "lance_ray",
        tests=("tests",),
        options=("--ignore=tests/test_release_check_helpers.py",),  # of the scripts that make its releases
        # Its workers import for minutes on a busy machine, and are started anew where they have not come by then.
        environ={
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_register_timeout_seconds": str(WORKER_SECONDS),
            "RAY_DATA_DEFAULT_MIN_PARALLELISM": "4",  # of 200, for some ten rows
        },
        test_seconds=2 * WORKER_SECONDS,
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of one test, and why where it did not pass."""

    test: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The outcomes of a suite; or, in `skipped`, why it was not run."""

    suite: Suite
    outcomes: Sequence[Outcome] = ()
    skipped: str = ""

    @property
    def client(self) -> str:
        """The client's package, and its version."""
        return f"{self.suite.client} {version(self.suite.client)}"

    @property
    def counts(self) -> list[int]:
        """How many tests that apply had each outcome, in the order of `APPLY`."""
        return [len(self.named(outcome)) for outcome in APPLY]

    def named(self, outcome: str) -> list[Outcome]:
        return [found for found in self.outcomes if found.outcome == outcome]


def run_suite(suite: Suite, server: ServerProcess, folder: Path, connection: str | None = None) -> list[Outcome]:
    """Run a suite against a server; return its outcomes. Raises SourcesMissingError."""
    connection = connection or suite.connection
    source, packages = suite.project.checkout(), install_packages(sys.executable)
    record = folder / f"{suite.list_name}-{connection}.jsonl"
    record.unlink(missing_ok=True)
    environ = {
        **os.environ,
        **suite.environ,
        "PEER_SERVER": server.url,
        "PEER_ROOT": str(server.root),
        "PEER_CONNECTION": connection,
        "PEER_LIST": str(HERE / "lists" / f"{suite.list_name}.toml"),
        "PEER_OUTCOMES": str(record),
        "PYTHONPATH": f"{HERE / 'plugins'}{os.pathsep}{packages}",
    }
    plugins = ("-p", "peer_outcomes", "-p", suite.plugin, "-p", "no:cacheprovider")
    options = ("-q", "-W", "ignore", "-o", "addopts=", "-o", "asyncio_default_fixture_loop_scope=function")
    limits = ("--timeout", str(suite.test_seconds), "--continue-on-collection-errors")
    command = [sys.executable, "-m", "pytest", *plugins, *options, *limits, *suite.options, *suite.tests]
    with record.with_suffix(".log").open("w") as log, suppress(subprocess.TimeoutExpired):  # what was run counts
        subprocess.run(
            command, cwd=source / suite.folder, env=environ, stdout=log, stderr=log, timeout=SUITE_SECONDS, check=False
        )
    if not record.exists():
        raise RuntimeError(f"The suite {suite.title} has not run: see {record.with_suffix('.log')}")
    outcomes = (Outcome(**json.loads(line)) for line in record.read_text().splitlines())
    return list({found.test: found for found in outcomes}.values())


def without_failing_on_folders(outcomes: Sequence[Outcome], baseline: Sequence[Outcome]) -> list[Outcome]:
    """Mark failures of tests that fail on a folder, too: they are of the client's version."""
    failing = {found.test for found in baseline if found.outcome == "failed" and TIMED_OUT not in found.reason}
    return [
        Outcome(found.test, "not applicable", VERSION) if found.outcome == "failed" and found.test in failing else found
        for found in outcomes
    ]


APPLY = ("passed", "on purpose", "by the client", "failed")
"""Outcomes of tests that apply, in the order of the columns."""
REASONS = {"fail": APPLY[1:], "do not apply": ("not applicable",), "were not run": ("not run",)}
TIMED_OUT = "from pytest-timeout"
"""Part of the reason of a test that took too long: it says something of the machine, and nothing of a version."""
VERSION = "fails on a folder, too: written for another version of the client"
_baselines: dict[Project, list[Outcome]] = {}
"""What came out of tests on a folder: the same for all suites of a project."""


@contextmanager
def running_server(folder: Path) -> Iterator[ServerProcess]:
    """Start a server on a folder, and stop it in the end."""
    server = ServerProcess(folder, forked=False)
    try:
        yield server
    finally:
        server.stop()


def observe(name: str, folder: Path | None = None) -> Result:
    """Run a suite against a server of its own, or say why it was not run; `folder` gets the logs."""
    suite = SUITES[name]
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) if folder is None else folder
        try:
            suite.project.checkout()
            with running_server(Path(tempfile.mkdtemp(dir=temporary))) as server:
                if suite.baseline and suite.project not in _baselines:
                    _baselines[suite.project] = run_suite(suite, server, place, "local")
                outcomes = run_suite(suite, server, place)
        except SourcesMissingError as missing:
            return Result(suite, skipped=str(missing))
    return Result(suite, without_failing_on_folders(outcomes, _baselines.get(suite.project, [])))


def table(result: Result) -> str:
    """Return the outcomes as Markdown: a row of counts, then why tests fail, and why others do not apply."""
    suite = result.suite
    lines = [
        f"{suite.project.name} {suite.project.version} ({suite.project.commit[:9]}), with {result.client}.\n",
        "| apply | pass | on purpose otherwise | fail by the client | fail by the server |",
        "|---|---|---|---|---|",
        f"| {sum(result.counts)} | {' | '.join(map(str, result.counts))} |",
    ]
    for title, outcomes in REASONS.items():
        reasons = Counter(_reason(found) for found in result.outcomes if found.outcome in outcomes)
        if reasons:
            lines += [f"\n| why tests {title} | tests |", "|---|---|"]
            ordered = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))
            lines += [f"| {reason.replace('|', chr(92) + '|')} | {count} |" for reason, count in ordered]
    return "\n".join(lines)


def _reason(found: Outcome) -> str:
    """Return why a test did not pass; of one that fails by the server, which it is."""
    return f"{found.test.rpartition('/')[2]}: not expected" if found.outcome == "failed" else found.reason


def failures(result: Result) -> list[str]:
    """Return a line for each test that failed and was not expected to."""
    return [
        f"{result.suite.title}: {found.test}: {' '.join(found.reason.split())[:200]}"
        for found in result.named("failed")
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SUITES, help="run this suite; may be given again")
    parser.add_argument("--keep", type=Path, help="a folder for the logs and the outcomes of each test")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    unexpected = []
    for name in arguments.only or SUITES:
        result = observe(name, arguments.keep)
        if result.skipped:
            sys.stdout.write(f"{result.suite.title}: skipped: {result.skipped}\n")
            continue
        unexpected += failures(result)
        sys.stdout.write(f"{result.suite.title}: {table(result)}\n\n")
    sys.stdout.write("".join(f"{line}\n" for line in unexpected))
    return int(bool(unexpected))


if __name__ == "__main__":
    sys.exit(main())
