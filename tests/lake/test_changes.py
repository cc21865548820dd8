"""The change feed of a lake's tables, on a server and a folder; in Spark: `tests/spark/test_changes.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    TableBranchNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

import tiltyard
from tests.services.server import ServerProcess

FILMS = pa.table({"id": range(10), "title": [f"film {number}" for number in range(10)]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server for the whole file."""
    server = ServerProcess(tmp_path_factory.mktemp("changes"))
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["server", "folder"])
def films(request: pytest.FixtureRequest, tmp_path: Path) -> tiltyard.Table:
    """Return a table with four versions, of a server and of a folder."""
    folder = tmp_path / "root"
    lake = tiltyard.connect(folder if request.param == "folder" else request.getfixturevalue("server").url)
    films = lake.table(f"films_{abs(hash(request.node.nodeid))}")
    films.ingest(FILMS)
    films.write([{"id": 10, "title": "film 10"}])
    films.upsert([{"id": 5, "title": "five"}, {"id": 11, "title": "film 11"}], on="id")
    films.dataset().delete("id = 3")
    return films


def changed(changes: tiltyard.Changes) -> list[tuple[Any, ...]]:
    """Return the changes, without their times."""
    rows = changes.to_arrow().drop_columns("_timestamp").to_pylist()
    return [tuple(row.values()) for row in rows]


def test_changes_of_appends_upserts_and_deletions(films: tiltyard.Table) -> None:
    assert films.version == 4
    by_key = films.changes(since=1, on="id")
    assert (by_key.since, by_key.until) == (1, 4)
    assert changed(by_key) == [
        ("insert", 2, 10, "film 10"),
        ("insert", 3, 11, "film 11"),
        ("update_before", 3, 5, "film 5"),
        ("update_after", 3, 5, "five"),
        ("delete", 4, 3, "film 3"),
    ]
    without_key = films.changes(since=2, until=3, columns="title")
    assert changed(without_key) == [
        ("delete", 3, "film 5"),
        ("insert", 3, "five"),
        ("insert", 3, "film 11"),
    ] and without_key.schema.names == ["_change", "_version", "_timestamp", "title"]
    assert films.changes(0).counts()[1] == {"insert": 10}
    assert "<td>update_after</td><td>1</td>" in by_key._repr_html_() and "after version 1" in repr(by_key)
    assert films.changes(4).to_pandas().empty


@pytest.mark.parametrize("on", ["id", None])
def test_changes_of_updated_rows_are_in_pairs(films: tiltyard.Table, on: str | None) -> None:
    dataset = films.dataset()
    since = int(dataset.version)
    if on is None:  # a column in place: values are compared
        dataset.add_columns({"length": "length(title)"})
        expected = [(key, part) for key in (0, 1, 2, 4) for part in ("update_before", "update_after")]
    else:
        dataset.update({"title": "'new'"}, where="id IN (1, 2, 7)")
        expected = [(key, part) for key in (1, 2, 7) for part in ("update_before", "update_after")]
    rows = films.changes(since, on=on).to_arrow().to_pylist()
    assert [(row["id"], row["_change"]) for row in rows][: len(expected)] == expected


def test_changes_since_a_tag_by_a_declared_key_and_of_a_branch(films: tiltyard.Table) -> None:
    dataset = films.dataset()
    dataset.tags.create("release", 2)
    assert films.changes("release").counts() == films.changes(2).counts()
    dataset = films.dataset()
    dataset.alter_columns({"path": "id", "nullable": False})
    dataset.update_field_metadata({"id": {"lance-schema:unenforced-primary-key": "true"}})
    films.upsert([{"id": 5, "title": "five"}], on="id")
    assert films.changes(films.version - 1).counts() == {films.version: {"update_before": 1, "update_after": 1}}
    films.dataset().create_branch("dev")
    branch = films.dataset(branch="dev")
    branch.delete("id < 2")
    since = int(branch.version) - 1
    assert films.changes(since, branch="dev", columns="id").to_arrow()["id"].to_pylist() == [0, 1]
    with pytest.raises(TableVersionNotFoundError, match="no version of the branch 'dev'"):
        films.changes(since - 1, branch="dev")


def test_what_cannot_be_read_is_refused_in_one_sentence(films: tiltyard.Table) -> None:
    calls: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
        "a later version": ({"since": 9}, InvalidInputError, "since is 9: it is a version from 0 to 4"),
        "a negative one": ({"since": -1}, InvalidInputError, "since is -1"),
        "an order": ({"since": 3, "until": 2}, InvalidInputError, "since is 3: it is a version from 0 to 2"),
        "no such version": ({"since": 1, "until": 9}, TableVersionNotFoundError, "There is no version 9"),
        "no version at all": ({"since": None}, InvalidInputError, "a number, or the name of a tag, and not None"),
        "no such tag": ({"since": "x"}, TableTagNotFoundError, "x"),
        "no such branch": ({"since": 1, "branch": "x"}, TableBranchNotFoundError, "has no branch 'x'"),
        "no such column": ({"since": 1, "columns": "x"}, InvalidInputError, "columns: there is no column 'x'"),
        "no such key": ({"since": 1, "on": ["x"]}, InvalidInputError, "on: there is no column 'x'; there are id, ti"),
    }
    for what, (arguments, error, sentence) in calls.items():
        with pytest.raises(error, match=sentence):
            films.changes(**arguments)
        assert what and films.version == 4
    with films._lake.publish() as change, pytest.raises(InvalidInputError, match="no part of a publication"):
        change.table(films.name).changes(1)
