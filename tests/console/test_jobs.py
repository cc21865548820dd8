"""Jobs in the console: the list, one of them and its events, what can be done with it, and the forms that start one."""

from __future__ import annotations

import re
import time

import httpx
import pytest

from tests.access.scenes import send
from tests.services.console_data import FILMS
from tests.services.forms import Field, find_form
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.console.jobs.start import JobForm, JobParameter, read_arguments
from tiltyard.model.spec import operations

CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
TABLE = "$".join(FILMS)
START = "/console/jobs/start"


def submit(server: ServerProcess, name: str = "delete", where: str = "id < 0") -> str:
    """Queue a job that no worker of these tests runs; its id."""
    body = {"name": name, "table": list(FILMS), "arguments": {"table": TABLE, "where": where}}
    job_id: str = call(server, "SubmitJob", body).json()["job"]["id"]
    return job_id


def call(server: ServerProcess, operation: str, fields: dict[str, object]) -> httpx.Response:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        response = send(client, operations()[operation], fields)
        assert response.status_code == 200, response.text
        return response


def act(http: httpx.Client, job_id: str, action: str) -> httpx.Response:
    token = CSRF.search(http.get("/jobs/start", params={"name": "delete"}).text)
    assert token is not None
    return http.post("/job", data={"csrf": token[1], "id": job_id, "action": action}, follow_redirects=True)


def test_schedules_are_listed_paused_resumed_run_and_dropped_where_that_can_be_done(
    server: ServerProcess, http: httpx.Client
) -> None:
    schedule = {"job": "delete", "table": list(FILMS), "arguments": {"table": TABLE, "where": "id < 0"}}
    call(server, "CreateSchedule", {"id": [FILMS[0], "nightly"], **schedule, "cron": "0 3 * * *"})

    def steer(action: str) -> httpx.Response:
        token = CSRF.search(http.get("/jobs/start", params={"name": "delete"}).text)
        assert token is not None
        form = {"csrf": token[1], "id": f"{FILMS[0]}$nightly", "action": action}
        return http.post("/jobs/schedules", data=form, follow_redirects=True)

    shown = http.get("/jobs/schedules", params={"table": TABLE}).text
    assert "0 3 * * * (UTC)" in shown and "active" in shown and "never" in shown and "03:00:00 UTC" in shown
    assert "Resume" in steer("pause").text
    ran = steer("run")
    assert 'data-state="QUEUED"' in ran.text
    refused = steer("run")
    assert refused.status_code == 409 and "has not ended" in refused.text and "Resume" in refused.text
    assert "Pause" in steer("resume").text
    assert "queued" in http.get("/jobs/schedules").text
    assert "No schedules" in steer("drop").text
    assert "Schedule not found" in steer("drop").text
    act(http, str(ran.url.params["id"]), "cancel")


def test_a_stale_table_is_marked_in_lists_on_its_pages_and_in_the_metrics(
    server: ServerProcess, http: httpx.Client
) -> None:
    call(server, "SetTableMaxAge", {"id": list(FILMS), "max_age_seconds": 10})
    deadline = time.monotonic() + 60
    path = "/".join(FILMS)
    while "stale" not in http.get(f"/summary/{path}", headers={"hx-request": "true"}).text:
        assert time.monotonic() < deadline, "the table of these tests is not older than ten seconds"
        time.sleep(0.5)
    assert ">stale</span>" in http.get(f"/table/{path}").text
    metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
    assert f'tiltyard_table_stale{{table="{TABLE}"}} 1.0' in metrics
    call(server, "SetTableMaxAge", {"id": list(FILMS)})
    assert ">stale</span>" not in http.get(f"/table/{path}").text


def test_job_is_listed_described_paused_resumed_cancelled_and_submitted_again(
    server: ServerProcess, http: httpx.Client
) -> None:
    job_id = submit(server)
    listed = http.get("/jobs", params={"table": TABLE, "type": "delete", "state": "QUEUED"}).text
    assert f"id={job_id}" in listed and "queued" in listed
    shown = http.get("/job", params={"id": job_id}).text
    assert "cinema / films" in shown and "id &lt; 0" in shown and 'data-final="no"' in shown
    assert 'data-state="PAUSED"' in act(http, job_id, "pause").text
    assert 'data-state="QUEUED"' in act(http, job_id, "resume").text
    cancelled = act(http, job_id, "cancel")
    assert 'data-state="CANCELLED"' in cancelled.text and "Submit again" in cancelled.text
    again = act(http, job_id, "submit")
    assert 'data-state="QUEUED"' in again.text and job_id not in str(again.url)
    act(http, str(again.url.params["id"]), "cancel")


def test_events_of_a_job_end_with_its_last_change(server: ServerProcess, http: httpx.Client) -> None:
    job_id = submit(server)
    kinds: list[str] = []
    with http.stream("GET", "/job/changes", params={"id": job_id}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if not line.startswith("event: "):
                continue
            kinds.append(line.removeprefix("event: "))
            if kinds == ["change"]:
                call(server, "CancelJob", {"job_id": job_id})
    assert kinds[0] == "change" and kinds[-1] == "end"


def test_index_build_shows_its_figures_and_its_log(server: ServerProcess, http: httpx.Client) -> None:
    with Wire(server.url) as wire:
        body = {"column": "year", "index_type": "BTREE"}
        created = wire.good(wire.table(FILMS, "create_scalar_index", body))
    deadline = time.monotonic() + 60
    while 'data-state="DONE"' not in (text := http.get("/job", params={"id": created["transaction_id"]}).text):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    assert "year" in text and '<h2 id="log">' in text and "Cancel" not in text.partition("<main")[2]


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/job?id=nothing", 404, "nothing"),
        ("/job", 400, "Open one from the list"),
        ("/job/changes?id=nothing", 404, "nothing"),
        ("/jobs?type=cooking", 400, "There is no job"),
        ("/jobs?state=HUNGRY", 400, "There is no state"),
        ("/jobs?table=no$such", 404, "no"),
        ("/jobs/start?name=cooking", 400, "There is no job"),
    ],
)
def test_wrong_job_is_said(http: httpx.Client, address: str, status: int, message: str) -> None:
    response = http.get(address)
    assert response.status_code == status and message in response.text


def test_unknown_action_is_refused(server: ServerProcess, http: httpx.Client) -> None:
    job_id = submit(server)
    assert act(http, job_id, "explode").status_code == 400
    assert act(http, job_id, "submit").status_code in (400, 409)
    act(http, job_id, "cancel")


def test_form_starts_a_job_and_keeps_what_was_entered_where_that_is_wrong(http: httpx.Client) -> None:
    page = http.get("/jobs/start", params={"name": "optimize", "table": TABLE}).text
    assert f'value="{TABLE}" selected' in page and "keep_versions_days" in page
    assert "No worker with Spark is alive" in page and "tiltyard worker --spark local" in page
    wrong = find_form(page, START).fill(rows_per_fragment="many").send(http)
    assert wrong.status_code == 400 and "whole number" in wrong.text and 'value="many"' in wrong.text
    started = find_form(wrong.text, START).fill(rows_per_fragment="1000").send(http)
    assert 'data-state="QUEUED"' in started.text and "1000" in started.text
    act(http, str(started.url.params["id"]), "cancel")


def test_fields_let_choose_from_the_catalog(http: httpx.Client) -> None:
    index = http.get("/jobs/start", params={"name": "index", "table": TABLE}).text
    assert '<option value="media$pictures">' in index and '<option value="vector">vector (fixed_size_list' in index
    assert '<option value="IVF_PQ">' in index
    other = http.get(
        "/jobs/start",
        params={"name": "index", "argument.table": "media$pictures", "argument.name": "mine", "argument.column": "id"},
        headers={"hx-request": "true"},
    ).text
    assert '<option value="shape.width">' in other and "vector (" not in other
    assert 'value="mine"' in other and '<option value="id" selected>' in other
    upsert = http.get("/jobs/start", params={"name": "upsert", "table": TABLE}).text
    assert '<input type="checkbox" name="argument.on" value="year">' in upsert
    ingest = http.get("/jobs/start", params={"name": "ingest"}).text
    assert 'list="p-table-list"' in ingest  # the table may be a new one


def test_several_columns_are_chosen_and_one_that_is_unknown_stays(http: httpx.Client) -> None:
    form = find_form(http.get("/jobs/start", params={"name": "upsert", "table": TABLE}).text, START)
    form.fill(source="x.parquet", task_mb="many")
    form.check("argument.on", "year", "id").fields.append(Field("argument.on", "gone"))
    sent = form.send(http)
    assert sent.status_code == 400 and "whole number" in sent.text
    assert (
        all(f'value="{name}" checked' in sent.text for name in ("year", "id")) and 'value="gone" checked' in sent.text
    )


def parameter(kind: str, *, required: bool = False, choices: tuple[str, ...] = ()) -> JobForm:
    return JobForm("", [JobParameter("p", kind, "What it is.", list(choices), required, None)])


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        (parameter("text"), "a", {"p": "a"}),
        (parameter("text"), "", {}),
        (parameter("boolean"), "yes", {"p": True}),
        (parameter("boolean"), "", {"p": False}),
        (parameter("integer"), "7", {"p": 7}),
        (parameter("number"), "0.5", {"p": 0.5}),
        (parameter("list"), "a\n\n b ", {"p": ["a", "b"]}),
        (parameter("mapping"), "a=1\nb=x=y", {"p": {"a": "1", "b": "x=y"}}),
        (parameter("choice", choices=("a", "b")), "b", {"p": "b"}),
        (parameter("text", required=True), "", "p is missing: What it is."),
        (parameter("integer"), "1.5", "a whole number"),
        (parameter("number"), "x", "a number"),
        (parameter("mapping"), "a", "NAME=VALUE"),
        (parameter("choice", choices=("a", "b")), "c", "one of a, b"),
    ],
)
def test_arguments_of_a_form(form: JobForm, text: str, arguments: dict[str, object] | str) -> None:
    if isinstance(arguments, dict):
        assert read_arguments(form, {"p": text}) == arguments
    else:
        with pytest.raises(Exception, match=arguments):
            read_arguments(form, {"p": text})
