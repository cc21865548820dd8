"""Configuration of all tests."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Generator
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.services.forked_process import share_starters
from tests.services.jvm import use_light_jvms
from tests.services.tls_context import share_tls_context

# The same examples in each run: what fails here fails there, and a suite that was green does not find by chance what
# it never looked for. `HYPOTHESIS_PROFILE=default` looks further; how long an example may take is the machine's affair.
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# By this signal `.ci/run` ends a run that takes too long, and pytest tells what has failed so far. Whatever a shell
# starts in the background ignores it, and so would all of its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

use_light_jvms()
share_tls_context()

TESTS = Path(__file__).parent
SPARK_SESSIONS = 2
CATALOGS = ("backend: Backend", "target: Backend", "hive: HiveMetastore")
"""Fixtures of mounted catalogs, whose servers all files on one process share."""
FIRST = (
    *("tests/spark/", "tests/faults/", "tests/power/", "tests/attacks/", "tests/mounts/", "tests/test_docs.py"),
    *("tests/conformance/test_engines.py", "tests/conformance/test_publish.py", "tests/fuzz/test_schema.py"),
)
"""Files, and folders of files, that take the longest: what begins last of them would run on alone."""
EXTENDED_SECONDS = "TEST_EXTENDED_SECONDS"
"""The variable that says for how long extended tests are begun; without it, until all have run."""
EXTENDED_UNTIL = "TEST_EXTENDED_UNTIL"
"""The variable that tells the processes of a run when that ends, in seconds of the epoch."""
NOT_BEGUN = "The time for extended tests was up."


class FilesTogether(LoadScopeScheduling):
    """Schedule tests for xdist: a file stays on one process, files with the Spark session share two of them, and
    those with a mounted catalog one.

    xdist's own `loadgroup` does nothing with pytest 9.2 (pytest-xdist issue 1386): tests of a file then run anywhere.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if takes_spark(file):
            return f"spark {crc32(file.encode()) % SPARK_SESSIONS}"
        return "catalogs" if takes_catalogs(file) else file


@cache
def takes_spark(file: str) -> bool:
    """Return whether the tests of a file take the fixture `spark`. The process that schedules imports no tests."""
    return "spark: SparkSession" in (TESTS.parent / file).read_text()


@cache
def takes_catalogs(file: str) -> bool:
    """Return whether the tests of a file take a mounted catalog, whose server takes long to start."""
    if not file.startswith("tests/mounts/"):
        return False
    text = (TESTS.parent / file).read_text()
    return any(fixture in text for fixture in CATALOGS)


@pytest.hookimpl
def pytest_configure() -> None:
    """Take the time for extended tests, where a run has one: continuous integration on a slow machine."""
    if seconds := os.environ.pop(EXTENDED_SECONDS, ""):
        os.environ[EXTENDED_UNTIL] = str(time.time() + float(seconds))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no extended test once their time is up; the end of the run says how many those were, and of which files."""
    until = os.environ.get(EXTENDED_UNTIL)
    if until and item.get_closest_marker("extended") and time.time() > float(until):
        pytest.skip(NOT_BEGUN)


@pytest.hookimpl
def pytest_xdist_setupnodes() -> None:
    """Start what forks servers once, and not in each of the processes that are about to run tests."""
    share_starters()


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether:
    """Return the scheduler; it begins with the first files (`--no-loadscope-reorder`)."""
    return FilesTogether(config, log)


@cache
def may_be_extended(folder: Path) -> bool:
    """Return whether a conftest of this folder, or of one above it, says which tests are extended."""
    return folder != TESTS and (mentions_extended(folder / "conftest.py") or may_be_extended(folder.parent))


@cache
def mentions_extended(file: Path) -> bool:
    return file.exists() and "extended" in file.read_text()


def is_extended(file: Path) -> bool:
    """Return whether all tests of a file are extended."""
    return mentions_extended(file) and any(
        line.startswith("pytestmark = ") and "mark.extended" in line for line in file.read_text().splitlines()
    )


@pytest.hookimpl
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test of the lane that runs: to import and collect all takes each process 15 s."""
    if not collection_path.name.startswith("test_") or TESTS not in collection_path.parents:
        return None
    match config.option.markexpr:
        case "not extended" if is_extended(collection_path):
            return True
        case "extended" if not (mentions_extended(collection_path) or may_be_extended(collection_path.parent)):
            return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, which all stay; nor look through them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take the longest: those that share a Spark session or mounted catalogs, then FIRST.

    Where extended tests have a time, all other files that have some come after the first, for each commit in another
    order: what one run does not come to is run for another commit.
    Raises UsageError for an extended test that `make test-all` would not collect.
    """
    for path in {item.path for item in items if item.get_closest_marker("extended")}:
        if not (mentions_extended(path) or may_be_extended(path.parent)):
            raise pytest.UsageError(f"{path} has extended tests: say so in the file, or in a conftest of its folder.")
    files = {item.nodeid.partition("::")[0] for item in items}
    rank = {
        file: 0 if takes_spark(file) or takes_catalogs(file) else 1 if file.startswith(FIRST) else 2 for file in files
    }
    order = {file: (rank[file], 0) for file in files}
    if EXTENDED_UNTIL in os.environ:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TESTS, capture_output=True, check=False).stdout
        extended = {item.nodeid.partition("::")[0] for item in items if item.get_closest_marker("extended")}
        for file in files:
            if rank[file]:
                order[file] = (1, crc32(file.encode() + commit)) if file in extended else (2, 0)
    items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which tests were not begun, and a table of the attacks that ran: outcome, time, and the server's memory
    before and at most.

    Here and not beside them: where tests run in several processes, the one that prints knows this file alone.
    """
    not_begun = Counter(
        report.nodeid.partition("::")[0]
        for report in terminalreporter.stats.get("skipped", ())
        if NOT_BEGUN in report.longreprtext
    )
    if not_begun:
        terminalreporter.section(f"{not_begun.total()} extended tests were not begun: their time was up", red=True)
        for file, count in sorted(not_begun.items()):
            terminalreporter.write_line(f"{count:5} {file}")
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if report.when == "call" and report.nodeid.startswith("tests/attacks/")
    ]
    if reports:
        terminalreporter.section("attacks")
    memory = {  # known once a test's fixtures have ended
        report.nodeid: dict(report.user_properties).get("memory_mib", "")
        for report in terminalreporter.stats.get("", ())
        if report.when == "teardown"
    }
    for report in sorted(reports, key=lambda report: report.nodeid):
        attack = report.nodeid.removeprefix("tests/attacks/").rsplit("@", 1)[0]
        terminalreporter.write_line(
            f"{report.outcome:7} {report.duration:6.1f} s  {memory.get(report.nodeid, ''):>14} MiB  {attack}"
        )
