"""Functions as jobs: validation of their arguments, and their commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError

from tiltyard.cli import main
from tiltyard.model.jobs import PIPELINE_JOBS, pipeline_jobs
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.jobs import find_job, job, split_names
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from tiltyard.pipeline.runs import Run

SEEN: dict[str, Any] = {}


def tell(
    run: Run,
    catalog: Any,
    spark: None,
    source: Annotated[str, "Where from."],
    table: Annotated[str, "Where to."],
    *,
    on: Annotated[list[str], "Keys."] = [],  # noqa: B006  # read only
    rename: Annotated[dict[str, str], "Names."] = {},  # noqa: B006  # read only
    mode: Annotated[Literal["create", "append"], "How."] = "create",
    limit: Annotated[int | None, "How many."] = None,
    strict: Annotated[bool, "Whether."] = False,
) -> Mapping[str, object]:
    """Tell what it was given.

    Nothing more.
    """
    SEEN.update(source=source, table=table, on=on, rename=rename, mode=mode, limit=limit, strict=strict, spark=spark)
    run.progress(rows=7, rows_total=7)
    return {"rows": 7}


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A job `tell` that needs no session, and what it was given."""
    monkeypatch.setitem(PIPELINE_JOBS, "tell", __name__)
    job("tell", spark=False, creates=True)(tell)
    SEEN.clear()
    pipeline_jobs.cache_clear()
    yield SEEN
    pipeline_jobs.cache_clear()


def test_find_job_with_a_name_that_none_has_says_which_there_are(received: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"no job 'tale': choose one of .*tell"):
        find_job("tale")


def test_checked_without_optional_arguments_fills_defaults(received: dict[str, Any]) -> None:
    arguments = find_job("tell").validate({"source": "here", "table": "library$films"})
    assert (
        arguments["on"] == []
        and arguments["rename"] == {}
        and arguments["mode"] == "create"
        and arguments["limit"] is None
    )
    assert find_job("tell").table(arguments) == ["library", "films"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"source": "here"}, "table"),
        ({"source": "here", "table": "films", "colour": "red"}, "colour"),
        ({"source": "here", "table": "films", "limit": "many"}, "limit"),
        ({"source": "here", "table": "films", "mode": "replace"}, "mode"),
    ],
)
def test_checked_with_arguments_that_do_not_fit_names_the_one(
    received: dict[str, Any], arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInputError, match=named):
        find_job("tell").validate(arguments)


def test_checked_takes_earlier_names_of_arguments_once() -> None:
    ingest, where = find_job("ingest"), {"source": "rows.csv", "table": "films"}
    assert ingest.validate({**where, "check": ["rows > 1"]})["checks"] == ["rows > 1"]
    assert find_job("delete").validate({"table": "films", "where": "a > 1"})["filter"] == "a > 1"
    with pytest.raises(InvalidInputError, match="takes checks once: check is another name of it"):
        ingest.validate({**where, "checks": ["rows > 1"], "check": ["rows > 2"]})
    with pytest.raises(InvalidInputError, match="mode is one of create, append, overwrite, and not 'replace'"):
        ingest.validate({**where, "mode": "replace"})


def test_job_command_splits_lists_of_columns_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, Any] = {}
    monkeypatch.setattr("tiltyard.cli.jobs.job.run_job", lambda _, arguments, *__, **___: passed.update(arguments))
    options = ["--select", "a, b", "--select", '"c,d"', "--checks", "between(a, 0, 1)", "--check", "unique(a,b)"]
    done = CliRunner().invoke(main, ["job", "ingest", "rows.csv", "films", *options, "--uri", "nowhere"])
    assert done.exit_code == 0, done.output
    assert (passed["select"], passed["checks"]) == (["a", "b", "c,d"], ["between(a, 0, 1)", "unique(a,b)"])
    assert split_names(" a,, b ") == ["a", "b"]


def test_job_command_hands_its_arguments_to_the_function(received: dict[str, Any], tmp_path: Any) -> None:
    options = ["--on", "id", "--on", "year", "--rename", "a=b=c", "--mode", "append", "--limit", "3", "--strict"]
    done = CliRunner().invoke(main, ["job", "tell", "here", "films", *options, "--untracked", "--uri", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, "rows: 7\n")
    assert received == {
        "source": "here",
        "table": "films",
        "on": ["id", "year"],
        "rename": {"a": "b=c"},
        "mode": "append",
        "limit": 3,
        "strict": True,
        "spark": None,
    }


def test_job_command_help_is_the_functions_docstring(received: dict[str, Any]) -> None:
    done = CliRunner().invoke(main, ["job", "tell", "--help"])
    assert "Nothing more." in done.output and "Keys." in done.output and "[create|append]" in done.output


@pytest.mark.parametrize("arguments", [{"cast": {"a": "foo"}}, {"check": ["foo"]}, {"udf": "no-such-module:f"}])
def test_job_that_refuses_an_argument_says_so_as_a_mistake_of_the_caller(arguments: dict[str, Any]) -> None:
    ingest = find_job("ingest").function
    with pytest.raises(InvalidInputError):
        ingest(LocalRun(), connection("nowhere"), None, "rows.parquet", "t", **arguments)


@pytest.mark.parametrize("name", sorted(PIPELINE_JOBS))
def test_job_command_help_shows_examples_on_lines_of_their_own(name: str) -> None:
    done = CliRunner().invoke(main, ["job", name, "--help"])
    assert done.exit_code == 0
    assert "\\" not in done.output.replace("\\\n", "")
    assert f"\n    tiltyard job {name} " in done.output
