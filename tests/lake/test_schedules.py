"""Schedules and ages in Python and on the command line: the examples of docs/schedules.md, and what they refuse."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, TableNotFoundError

import tiltyard
from tiltyard.cli import main
from tiltyard.lake import Lake

PAGE = (Path(__file__).resolve().parents[2] / "docs/schedules.md").read_text()
FILMS = pa.table({"id": [1, 2], "title": ["a", "b"]})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = tiltyard.connect(str(tmp_path_factory.mktemp("schedules") / "root"))
    lake.namespace("shop").create()
    lake.create_table("films", FILMS)
    return lake


def run(lake: Lake, command: str) -> tuple[str, int]:
    """Run a command on the catalog; return what it prints, and its status."""
    arguments = shlex.split(command, comments=True)[1:]
    place = arguments.index("--") if "--" in arguments else len(arguments)
    done = CliRunner().invoke(main, [*arguments[:place], "--root", lake.location, *arguments[place:]])
    return done.output, done.exit_code


def test_examples_of_the_page_run_as_they_stand(lake: Lake) -> None:
    [python] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(python.replace("http://127.0.0.1:2333", lake.location), "schedules.md", "exec"), {})
    assert lake.schedules() == []
    [shell] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    outputs = [run(lake, line) for line in shell.splitlines()]
    assert [status for _, status in outputs] == [0, 0, 0, 0]
    listed = outputs[-1][0]
    assert "every 15m" in listed and "on commit of films" in listed and "0 3 * * * (Europe/Berlin)" in listed
    assert lake.find_schedule("shop.load").arguments["mode"] == "overwrite"


def test_a_schedule_is_steered_by_commands(lake: Lake) -> None:
    create = "tiltyard schedule create steered optimize films"
    assert run(lake, f"{create} --every 15m --paused")[1] == 0
    assert "already exists" in run(lake, f"{create} --every 15m")[0]
    assert "next at" in run(lake, "tiltyard schedule resume steered")[0]
    job = run(lake, "tiltyard schedule run steered")[0].strip()
    refused, status = run(lake, "tiltyard schedule run steered")
    assert job in refused and "has not ended" in refused and status
    shown = run(lake, "tiltyard schedule show steered --format json")[0]
    assert job in shown and '"state":"Active"' in shown.replace(" ", "")
    assert "Paused" in run(lake, "tiltyard schedule pause steered")[0]
    assert run(lake, "tiltyard schedule drop steered --yes")[1] == 0
    for wrong, sentence in (
        ("--every soon", "is no duration"),
        ("--cron x", "five fields"),
        ("", "when its job runs"),
        ("--every 1h -- --colour red", "colour"),
    ):
        output, status = run(lake, f"{create} {wrong}")
        assert sentence in output and status, (wrong, output)
    assert run(lake, "tiltyard schedule create steered sleep --every 1h")[1] == 2


def test_a_schedule_in_python_is_altered_run_and_dropped(lake: Lake) -> None:
    schedule = lake.schedule("hourly", "optimize", {"table": "films"}, every=timedelta(hours=1))
    assert (schedule.state, schedule.job, schedule.last_run, schedule.last_status) == ("Active", "optimize", None, None)
    assert schedule.next_run is not None and "every 1h" in repr(schedule)
    assert schedule.pause().state == "Paused" and schedule.next_run is None
    queued = schedule.resume().run_now()
    assert [each.id for each in schedule.runs()] == [queued.id]
    assert schedule.refresh().last_status == "Queued"
    with pytest.raises(ConcurrentModificationError, match="has not ended"):
        schedule.run_now()
    queued.cancel()
    assert schedule.alter(on_commit=["films"], debounce="1m").next_run is None
    for wrong in ({"cron": "x"}, {"every": "soon"}, {}, {"every": 60, "zone": "UTC"}):
        with pytest.raises(InvalidInputError):
            lake.schedule("wrong", "optimize", {"table": "films"}, **wrong)
    with pytest.raises(InvalidInputError, match="unknown field"):
        lake.schedule("wrong", "optimize", {"tables": "films"}, every=60)
    schedule.drop()
    with pytest.raises(TableNotFoundError):
        schedule.refresh()


def test_the_table_of_a_schedules_job_is_named_as_tables_of_a_lake_are(lake: Lake) -> None:
    lake.create_table("shop.odd", FILMS)
    for name in ("shop.odd", "shop$odd"):
        schedule = lake.schedule("shop.nightly", "optimize", {"table": name}, every="1h")
        assert schedule.arguments["table"] == "shop$odd"
        assert "shop.odd" in run(lake, "tiltyard schedule list --table shop.odd")[0]
        schedule.drop()
    for wrong, sentence in (('"shop$odd"', "no names with"), ("shop..odd", "a name is empty")):
        with pytest.raises(InvalidInputError, match=sentence):
            lake.schedule("wrong", "optimize", {"table": wrong}, every="1h")


def test_stale_tables_are_listed_and_marked(lake: Lake) -> None:
    films = lake.table("films")
    films.set_max_age("10s")
    lake.catalog.caller()._services.store.transact(  # twenty seconds pass
        lambda work: [
            work.connection.change(f"UPDATE {each} - 20000")
            for each in ("tables SET updated_at = updated_at", "table_versions SET created_at = created_at")
        ]
    )
    assert films.is_stale() and lake.stale_tables() == ["films"]
    assert run(lake, "tiltyard freshness list --stale")[1] == 1
    assert "stale" in run(lake, "tiltyard ls -l")[0]
    assert '"stale":true' in run(lake, "tiltyard show films --format json")[0].replace(" ", "")
    assert run(lake, "tiltyard freshness set films 6h") == ("films may be 6h old\n", 0)
    assert not films.is_stale() and "fresh" in run(lake, "tiltyard freshness list")[0]
    films.set_max_age(None)
    assert "stale" not in run(lake, "tiltyard ls -l")[0]
