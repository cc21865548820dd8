"""No argument is ignored: each method of a lake, and each job, refuses a keyword that it does not use by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lancedb
import lancedb.db
import lancedb.remote.db
import lancedb.remote.table
import lancedb.table
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

import tiltyard
from tiltyard.lake.catalog import Lake
from tiltyard.lake.namespace import LakeNamespace
from tiltyard.lake.runs import Run
from tiltyard.lake.snapshots import Snapshot, SnapshotTable
from tiltyard.lake.tables.changes import Changes
from tiltyard.lake.tables.table import Table
from tiltyard.lake.views import View
from tiltyard.model.jobs import PIPELINE_JOBS
from tiltyard.model.spec import models, strict_schemas
from tiltyard.pipeline.jobs import find_job

UNKNOWN = "no_such_argument"
CLASSES = (Lake, LakeNamespace, Table, View, Snapshot, SnapshotTable, Changes, Run)
PEERS = (
    lancedb.table.LanceTable,
    lancedb.table.AsyncTable,
    lancedb.remote.table.RemoteTable,
    lancedb.db.LanceDBConnection,
    lancedb.remote.db.RemoteDBConnection,
)
ARGUMENTS: dict[str, Any] = {"source": "in.parquet", "plan": {"tables": {}}, "function": "id * 2", "since": 1}
"""Arguments that have to be of a form; all others are texts."""


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods of a class; not those that only say why there is no such thing."""
    for name, function in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and inspect.signature(function).return_annotation != "NoReturn":
            yield name, function


def keywords(kind: type, name: str) -> set[str]:
    """Return a keyword that nobody has, and those that lancedb's methods of this name have, and this one has not."""
    theirs = [getattr(peer, name) for peer in PEERS if callable(getattr(peer, name, None))]
    found = {parameter for method in theirs for parameter in inspect.signature(method).parameters}
    return {UNKNOWN} | found - {"self", "kwargs", *inspect.signature(getattr(kind, name)).parameters}


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Any]:
    """An object of each class, over a folder."""
    lake = tiltyard.connect(tmp_path_factory.mktemp("lake"))
    run = lake.table("films").ingest(pa.table({"id": [1, 2], "title": ["a", "b"]}))
    snapshot = lake.snapshot("now", ["films"])
    films = lake.table("films")
    subjects = (lake, lake.namespace("films"), films, lake.view("films"), snapshot, snapshot.table("films"))
    return dict(zip(CLASSES, (*subjects, films.changes(0), run), strict=True))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_keyword_that_a_method_does_not_use_is_refused_by_its_name(kind: type, subjects: dict[type, Any]) -> None:
    for name, function in methods(kind):
        parameters = list(inspect.signature(function).parameters.values())[1:]
        needed = {
            each.name: ARGUMENTS.get(each.name, "id")
            for each in parameters
            if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        }
        if kind is SnapshotTable and name == "export":  # which passes on what it is given
            needed = {"destination": "out"}
        for keyword in sorted(keywords(kind, name)):
            with pytest.raises((TypeError, InvalidInputError), match=rf"\b{keyword}\b|^A snapshot is immutable"):
                getattr(subjects[kind], name)(**needed, **{keyword: "x"})


def test_keyword_that_connect_does_not_use_is_refused_by_its_name(tmp_path: Path) -> None:
    used = set(inspect.signature(tiltyard.connect).parameters)
    for keyword in {UNKNOWN, *inspect.signature(lancedb.connect).parameters} - used - {"uri", "kwargs"}:
        with pytest.raises(TypeError, match=keyword):
            tiltyard.connect(tmp_path, **{keyword: None})  # type: ignore[arg-type]  # that is what is tested


@pytest.mark.parametrize("name", sorted(PIPELINE_JOBS))
def test_argument_that_a_job_does_not_have_is_refused_by_its_name(name: str) -> None:
    job = find_job(name)
    required = [each for each in job.parameters if each.is_required]
    needed: dict[str, Any] = {each.name: ["id"] if each.is_list else "id" for each in required}
    job.validate(needed)
    with pytest.raises(InvalidInputError, match=UNKNOWN):
        job.validate({**needed, UNKNOWN: 1})


def test_field_that_a_request_of_ours_does_not_have_is_refused() -> None:
    own = [getattr(models, name) for name in strict_schemas() if hasattr(models, name)]
    assert len(own) > 50 and all(model.__struct_config__.forbid_unknown_fields for model in own)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "BTREE", "index_type": "BITMAP"}, "type is BTREE and index_type is BITMAP"),
        ({"index_type": "BTREES"}, "Unknown index type 'BTREES'"),
        ({"index_type": "BITMAP", "metric": "l2"}, "BITMAP takes no metric"),
        ({"index_type": "BITMAP", "num_partitions": 4}, "BITMAP takes no num_partitions"),
        ({"index_type": "IVF_FLAT", "num_sub_vectors": 4}, "IVF_FLAT takes no num_sub_vectors"),
        ({"index_type": "IVF_PQ", "column_name": "id"}, "no parameter 'column_name'"),
        ({"index_type": "IVF_PQ", "branch_name": "id"}, "no parameter 'branch_name'"),
    ],
)
def test_create_index_refuses_what_its_type_does_not_have(
    subjects: dict[type, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        subjects[Table].create_index("id", **arguments)


def test_add_column_of_an_expression_refuses_a_version(subjects: dict[type, Any]) -> None:
    with pytest.raises(InvalidInputError, match="version"):
        subjects[Table].add_column("double", "id * 2", version="2")
