"""Which of several errors is reported, and where a table may be registered: as in Lance's own namespaces."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import lance
import lance.namespace as rust
import pyarrow as pa
import pytest

from tests.conformance.conftest import Raw
from tests.services.server import ServerProcess
from tests.services.wire import stream

Fresh = Callable[[str], str]
ROWS = pa.table({"id": [1, 2, 3]})
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
GARBAGE = b"this is no Arrow stream"


@pytest.fixture
def table(raw: Raw, fresh: Fresh) -> str:
    name = fresh("taken")
    assert raw.http.post(f"/v1/table/{name}/create", content=stream(ROWS), headers=ARROW).status_code == 200
    return name


def codes(responses: Mapping[str, httpx.Response]) -> dict[str, tuple[int, int | None]]:
    return {name: (response.status_code, response.json().get("code")) for name, response in responses.items()}


def test_name_that_is_taken_is_told_before_location_options_and_body(raw: Raw, table: str) -> None:
    outside: dict[str, Any] = {"location": "/etc"}
    calls = {
        "create": raw.http.post(f"/v1/table/{table}/create", content=GARBAGE, headers=ARROW),
        "create elsewhere": raw.http.post(
            f"/v1/table/{table}/create", params=outside, content=stream(ROWS), headers=ARROW
        ),
        "declare": raw.post(f"/v1/table/{table}/declare", outside),
        "declare badly": raw.post(
            f"/v1/table/{table}/declare", {"properties": {"tiltyard.managed_versioning": "perhaps"}}
        ),
        "register": raw.post(f"/v1/table/{table}/register", outside),
        "register nothing": raw.post(f"/v1/table/{table}/register", {"location": "no-such-folder"}),
        "clone": raw.post(f"/v1/table/{table}/clone", {"source_location": "/etc"}),
    }
    assert codes(calls) == dict.fromkeys(calls, (409, 5))
    free = raw.post(f"/v1/table/{table}-free/register", outside)
    assert (free.status_code, free.json()["code"]) == (400, 13)


def test_name_of_a_tag_or_a_branch_that_is_taken_is_told_before_its_version(raw: Raw, table: str) -> None:
    tag, branch = {"tag": "one", "version": 1}, {"name": "b"}
    assert raw.post(f"/v1/table/{table}/tags/create", tag).status_code == 200
    assert raw.post(f"/v1/table/{table}/branches/create", branch).status_code == 200
    responses = [
        raw.post(f"/v1/table/{table}/tags/create", {**tag, "version": 99}),
        raw.post(f"/v1/table/{table}/branches/create", {**branch, "from_version": 99}),
    ]
    assert [response.status_code for response in responses] == [409, 409], [response.text for response in responses]


def test_version_that_exists_is_told_before_what_is_staged(raw: Raw, table: str) -> None:
    for version, status in ((1, 409), (2, 400)):
        body = {"version": version, "manifest_path": "/etc/passwd", "naming_scheme": "V3"}
        response = raw.post(f"/v1/table/{table}/version/create", body)
        assert response.status_code == status, response.text


def test_deleted_versions_are_told_to_no_client_of_the_server(raw: Raw, rest: rust.RestNamespace, table: str) -> None:
    for _ in range(3):
        raw.http.post(f"/v1/table/{table}/insert", content=stream(ROWS), headers=ARROW)
    deleted = raw.post(f"/v1/table/{table}/version/delete", {"ranges": [{"start_version": 2, "end_version": 3}]})
    assert (deleted.status_code, deleted.json()) == (200, {"deleted_count": 1})
    versions = raw.post(f"/v1/table/{table}/version/list", {}).json()["versions"]
    assert [entry["version"] for entry in versions] == [1, 3, 4]
    responses = {
        "version": raw.post(f"/v1/table/{table}/version/describe", {"version": 2}),
        "table": raw.post(f"/v1/table/{table}/describe", {"version": 2}),
        "exists": raw.post(f"/v1/table/{table}/exists", {"version": 2}),
        "count": raw.post(f"/v1/table/{table}/count_rows", {"version": 2}),
        "query": raw.post(
            f"/v1/table/{table}/query", {"version": 2, "k": 1, "vector": {"single_vector": []}, "filter": "true"}
        ),
        "restore": raw.post(f"/v1/table/{table}/restore", {"version": 2}),
    }
    assert codes(responses) == dict.fromkeys(responses, (404, 11))
    latest = lance.dataset(namespace_client=rest, table_id=[table])
    latest.insert(ROWS)  # a stock client goes on
    assert lance.dataset(namespace_client=rest, table_id=[table]).count_rows() == 15


def test_location_relative_to_the_root_is_registered_and_answered_as_it_was_given(
    raw: Raw, server: ServerProcess, fresh: Fresh
) -> None:
    root, name = str(server.root), fresh("relative")
    location = f"sub/{name}.lance"
    lance.write_dataset(ROWS, f"{root}/{location}", storage_options=server.options)
    registered = raw.post(f"/v1/table/{name}/register", {"location": location})
    assert (registered.status_code, registered.json().get("location")) == (200, location), registered.text
    assert raw.post(f"/v1/table/{name}/describe", {}).json()["location"] == f"{root}/{location}"
    assert raw.post(f"/v1/table/{name}/count_rows", {}).json() == 3
    repeated = raw.post(f"/v1/table/{name}-2/register", {"location": location})
    assert repeated.status_code == 400, repeated.text  # another table's


@pytest.mark.parametrize(
    "location",
    ["", ".", "..", "../outside.lance", "a/../../outside.lance", "./a.lance", "a//b.lance", "a\\b", "%2e%2e/x"],
)
def test_relative_location_that_leads_elsewhere_is_refused(
    raw: Raw, server: ServerProcess, fresh: Fresh, location: str
) -> None:
    root = str(server.root)
    if "://" not in root and not Path(root, "..", "outside.lance").exists():
        lance.write_dataset(ROWS, Path(root, "..", "outside.lance"))
    response = raw.post(f"/v1/table/{fresh('r')}/register", {"location": location})
    assert (response.status_code, response.json()["code"]) == (400, 13), response.text


@pytest.mark.parametrize("server", ["embedded"], indirect=True)  # object stores have no links
def test_relative_location_over_a_link_is_refused(
    raw: Raw, server: ServerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    lance.write_dataset(ROWS, tmp_path / "elsewhere.lance")
    link = Path(server.root, f"{fresh('link')}.lance")
    link.symlink_to(tmp_path / "elsewhere.lance")
    response = raw.post(f"/v1/table/{fresh('r')}/register", {"location": link.name})
    assert (response.status_code, response.json()["code"]) == (400, 13), response.text
    link.unlink()
    shutil.rmtree(tmp_path / "elsewhere.lance")
