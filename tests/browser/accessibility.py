"""Every page of the console in front of axe-core, narrow and wide: `python -m tests.browser.accessibility`.

It writes the table of docs/console.md: of each page how many rules apply, and what violates them. The tests in
Chromium hold each page to no violation.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from playwright.sync_api import sync_playwright

from tests.browser.conftest import EVENTS, find_browser
from tests.browser.viewer import HEIGHT, MAX_BAR, Viewer, run_axe
from tests.services.console_data import make_tables
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from playwright.sync_api import Page

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/console.md"
PLACE = re.compile(r"(<!-- axe -->\n).*?(<!-- /axe -->)", re.DOTALL)
WIDTHS = (360, 1280)
PAGES = {
    "Catalog": "",
    "Namespace": "namespace/cinema",
    "Empty namespace": "namespace/empty",
    "Find": "find?q=film",
    "Table": "table/cinema/films",
    "View": "table/cinema/recent",
    "Rows": "rows/cinema/films?filter=year+%3E+1950&order=-year",
    "Rows: condition": "rows/cinema/films?where=year&operator=is&value=x&add=1",
    "Rows: images, sounds": "rows/media/pictures",
    "Search": "search/cinema/films?mode=like&row=4&plan=analyze",
    "Map": "map/cinema/films",
    "SQL": "sql",
    "SQL of a table": "sql/cinema/films",
    "Upload": "upload",
    "Upload into a namespace": "upload/cinema",
    "Upload into a table": "upload-into/cinema/films",
    "Create a table": "create-table/cinema",
    "Create a namespace": "create-namespace",
    "Drop a namespace": "drop-namespace/empty",
    "Dropped tables": "dropped",
    "Indexes": "indexes/cinema/films",
    "Manage a table": "manage/cinema/films",
    "Versions": "versions/cinema/films",
    "Versions compared": "compare/cinema/films?old=v1&new=v2",
    "Version to restore": "restore/cinema/films?version=1",
    "Branch compared": "branch/cinema/films?name=draft",
    "Access to a table": "policies/cinema/films",
    "See as": "see-as/cinema/films?principal=ann",
    "Jobs": "jobs",
    "Job": "job?id={job}",
    "Start a job": "jobs/start",
    "Form of a job": "jobs/start?name=upsert&table=cinema$films",
    "Schedules": "jobs/schedules",
    "Principals": "access",
    "Principal": "access/principal?name=ann",
    "Keys": "access/keys",
    "Roles": "access/roles",
    "Grants": "access/grants?kind=table&object=cinema$films",
    "Approvals": "access/approvals",
    "Erasures": "access/erasures",
    "Erasure": "access/erasure?id={erasure}",
    "Quotas": "access/quotas?days=7",
    "Events": "events",
    "Dead letters": "events/dead-letters?sink=lines",
    "Audit": "audit",
    "Server": "server",
    "An error": "table/no/where",
}
"""Each page by what it is called, and its address."""
IN_THREE_WIDTHS = {
    "catalog": ("namespace/empty", "find?q=film"),
    "objects": (
        "create-namespace",
        "drop-namespace/empty",
        "dropped",
        "upload-into/cinema/films",
        "manage/cinema/films",
    ),
    "sql": ("sql", "sql/cinema/films"),
    "tables": (
        "rows/cinema/films?filter=year+%3E+1950&order=-year",
        "rows/cinema/films?where=year&operator=is&value=x&add=1",
        "rows/media/pictures",
    ),
}
"""Addresses among them that tests of a section examine in one width more, and with dark colours, on the same tables."""
PARTS = frozenset(
    {
        *("tree", "summary", "freshness", "lineage", "condition", "counts", "facets", "map-points", "map-row"),
        *("cell", "bytes", "download", "sql-names", "sql-columns", "sql-download"),
        *("audit/chart", "audit/export", "access/usage/export", "server/storage", "job/changes", "events/changes"),
    }
)
"""Views that are parts of pages, or files; signing in and a new key, which take a server with keys, are in tests."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What axe finds of a page in a window: the number of rules that hold, and those that do not, with their places."""

    passed: int
    violations: dict[str, list[str]]
    excess: int
    header: int


def prepare(server: ServerProcess) -> dict[str, str]:
    """Make a view, a second version, a job and an erasure beside the tables; return the ids of the last two."""
    with Wire(server.url) as wire:
        view = {"query": "SELECT id, title FROM cinema.films WHERE year > 2010"}
        wire.good(wire.http.post("/v1/view/cinema%24recent/create", json=view))
        wire.good(wire.table(["cinema", "films"], "update", {"updates": [["year", "year + 1"]], "predicate": "id = 3"}))
        wire.good(wire.table(["cinema", "films"], "branches/create", {"name": "draft"}))
        schedule = {"job": "optimize", "table": ["cinema", "films"], "cron": "0 3 * * *", "zone": "Europe/Berlin"}
        wire.good(wire.http.post("/tiltyard/v1/schedule/cinema%24nightly/create", json=schedule))
        created = wire.good(
            wire.table(["cinema", "films"], "create_scalar_index", {"column": "year", "index_type": "BTREE"})
        )
        people = pa.table({"id": [1, 2], "mail": ["ann@example.org", "bob@example.org"]})
        wire.good(wire.table(["media", "people"], "create", stream(people)))
        erase = {"predicate": "id = 1", "values_of": ["mail"], "reference": "request 4711"}
        erased = wire.good(wire.http.post("/tiltyard/v1/table/media%24people/erase", json=erase))
        return {"job": str(created["transaction_id"]), "erasure": str(erased["erasure_id"])}


def examine(page: Page) -> Finding:
    """Have axe-core run all its rules, those of good practice too."""
    found = run_axe(page)
    violations = {each["id"]: [node["html"][:160] for node in each["nodes"][:4]] for each in found["violations"]}
    excess = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    header = "document.querySelector('header').offsetHeight"
    return Finding(len(found["passes"]), violations, page.evaluate(excess), page.evaluate(header))


def examine_all(viewer: Viewer, ids: Mapping[str, str], names: Iterable[str] | None = None) -> dict[str, list[Finding]]:
    """Examine pages, each in every width: opened once, since it adapts itself to the window."""
    findings: dict[str, list[Finding]] = {}
    for name in names or PAGES:
        viewer.open(PAGES[name].format_map(ids))
        for width in WIDTHS:
            viewer.page.set_viewport_size({"width": width, "height": HEIGHT})
            findings.setdefault(name, []).append(examine(viewer.page))
    return findings


def table(findings: dict[str, list[Finding]]) -> str:
    """Return the lines of the table."""
    heads = " | ".join(f"{width} px: rules held | violated" for width in WIDTHS)
    lines = [f"| page | {heads} |", "|---" * (1 + 2 * len(WIDTHS)) + "|"]
    for name, found in findings.items():
        cells = [f"{each.passed} | {', '.join(each.violations) or '0'}" for each in found]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Examine all pages, and write the table."""
    path = find_browser()
    if path is None:
        sys.exit("There is no Chromium: scripts/install_services.sh chromium installs it on Debian.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        server = ServerProcess(folder, environ=EVENTS)
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            make_tables(server.url)
            with Viewer.opened(browser, server.url, Path(folder)) as viewer:
                findings = examine_all(viewer, prepare(server))
        finally:
            browser.close()
            server.stop()
    for name, found in findings.items():
        for width, each in zip(WIDTHS, found, strict=True):
            if each.violations or each.excess > 0 or each.header > MAX_BAR:
                sys.stdout.write(f"{name} at {width} px: {each}\n")
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(PLACE.sub(lambda match: f"{match[1]}{table(findings)}{match[2]}", text))


if __name__ == "__main__":
    main()
