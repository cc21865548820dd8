"""The list of jobs has exactly the jobs that the caller can describe."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lance_namespace.errors import LanceNamespaceError

from tests.access.conftest import Catalog
from tests.services.secured import secured_server
from tiltyard.cli import main
from tiltyard.pipeline.catalog_client import connection
from tiltyard.runtime.process import wall_clock


def submitted(catalog: Catalog, principal: str | None, name: str, table: tuple[str, ...] = ()) -> str:
    request: dict[str, Any] = {"name": name, "arguments": {"table": "$".join(table)}, "table": list(table)}
    caller = catalog.as_(principal) if principal else catalog.owner
    job_id = str(caller.call("SubmitJob", request)["job"]["id"])
    submitted_at = wall_clock()
    while wall_clock() == submitted_at:  # the list is ordered by milliseconds, and then by ids
        time.sleep(0)
    return job_id


def listed(catalog: Catalog, principal: str, **fields: Any) -> list[str]:
    """Return the jobs that a principal can list, in pages of one."""
    job_ids: list[str] = []
    token = None
    while True:
        page = catalog.as_(principal).call("ListJobs", {"limit": 1, "page_token": token, **fields})
        job_ids += [job["id"] for job in page["jobs"]]
        if not (token := page.get("page_token")):
            return job_ids


@pytest.fixture
def jobs(catalog: Catalog) -> dict[str, str]:
    """Jobs of ann, of bob and of the owner, on tables of two namespaces and on none."""
    for space in ("s", "other"):
        catalog.namespace(space)
        catalog.table(space, "t")
    catalog.grant("ann", "write,run_udfs", table=("s", "t"))
    catalog.grant("bob", "write,run_udfs", table=("other", "t"))
    jobs = {
        "ann": submitted(catalog, "ann", "delete", ("s", "t")),
        "bob": submitted(catalog, "bob", "delete", ("other", "t")),
        "owner in s": submitted(catalog, None, "optimize", ("s", "t")),
        "owner of none": submitted(catalog, None, "export"),
    }
    catalog.grant("reader", "read", table=("s", "t"))
    catalog.grant("runner", "run_udfs", namespace=("s",))
    catalog.grant("chief", "administer", namespace=("other",))
    catalog.grant("server", "run_udfs")
    return jobs


def test_list_jobs_gives_each_caller_those_that_it_may_describe(catalog: Catalog, jobs: dict[str, str]) -> None:
    expected = {
        "ann": ["owner in s", "ann"],
        "bob": ["bob"],
        "reader": [],
        "runner": ["owner in s", "ann"],
        "chief": ["bob"],
        "server": ["owner of none", "owner in s", "bob", "ann"],
        "nobody": [],
    }
    for principal, names in expected.items():
        assert listed(catalog, principal) == [jobs[name] for name in names], principal
        for name, job_id in jobs.items():
            try:
                catalog.as_(principal).call("DescribeJob", {"id": [job_id]})
            except LanceNamespaceError:
                assert name not in names, (principal, name)
            else:
                assert name in names, (principal, name)
    assert listed(catalog, "ann", name="optimize") == [jobs["owner in s"]]
    assert listed(catalog, "ann", name="export") == []
    assert listed(catalog, "ann", status="Running") == []


def test_list_jobs_of_a_table_with_policies_gives_those_they_bind_their_own_jobs(
    catalog: Catalog, jobs: dict[str, str]
) -> None:
    catalog.owner.call("SetTablePolicy", {"id": ["s", "t"], "name": "few", "filter": "false"})
    catalog.refresh_rights()
    assert listed(catalog, "runner") == []
    assert listed(catalog, "ann") == [jobs["ann"]]
    assert listed(catalog, "server") == [jobs[name] for name in ("owner of none", "bob")]


def test_list_jobs_of_a_dropped_table_leaves_whoever_asked_for_them(catalog: Catalog, jobs: dict[str, str]) -> None:
    catalog.owner.call("DropTable", {"id": ["s", "t"]})
    catalog.refresh_rights()
    assert (listed(catalog, "ann"), listed(catalog, "runner")) == ([jobs["ann"]], [])


def test_job_list_command_works_without_being_an_administrator(tmp_path: Path) -> None:
    with secured_server(tmp_path) as running:
        admin = connection(running.url, {"header.x-api-key": running.keys["administrator"]}).caller()
        granted = {"object_kind": "namespace", "grantee": "ann", "privileges": ["all"]}
        admin.call("CreateNamespace", id=["s"])
        admin.call("GrantPrivileges", id=["s"], **granted)
        hidden = admin.call("SubmitJob", name="export")["job"]["id"]
        reach = ["--uri", running.url, "--property", f"header.x-api-key={running.keys['ann']}"]
        arguments = ["job", "optimize", "s$made", "--submit", *reach]
        job_id = CliRunner().invoke(main, arguments).output.strip()
        done = CliRunner().invoke(main, ["job", "list", *reach])
        assert (done.exit_code, done.output.split()[0], hidden in done.output) == (0, job_id, False), done.output
        assert CliRunner().invoke(main, ["job", "show", job_id, *reach]).exit_code == 0


def test_calls_of_names_with_a_delimiter_in_them_reach_the_object_of_that_name(tmp_path: Path) -> None:
    """A namespace `a$b` is another one than `b` in `a`: a grant goes to the one that was named."""
    with secured_server(tmp_path) as running:
        admin = connection(running.url, {"header.x-api-key": running.keys["administrator"]}).caller()
        for names in (["a"], ["a", "b"], ["a$b"]):
            admin.call("CreateNamespace", id=names)
        admin.call("GrantPrivileges", id=["a$b"], object_kind="namespace", grantee="ann", privileges=["read"])
        granted = [admin.call("ListGrants", id=names, object_kind="namespace") for names in (["a", "b"], ["a$b"])]
        assert [[grant["grantee"] for grant in page["grants"]] for page in granted] == [[], ["ann"]]
