"""Training sets of a lake, on a server and a folder: made, kept, verified, made again, refused and dropped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableAlreadyExistsError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

import tiltyard
from tests.services.server import ServerProcess

ROWS = 1200
SPLIT_HALVES = {"a": 0.5, "b": 0.5}
PAGE = Path(__file__).resolve().parents[2] / "docs/training-sets.md"
SPLITS = {"train": 0.8, "val": 0.1, "test": 0.1}


def clicks(start: int = 0, count: int = ROWS) -> pa.Table:
    """Return rows of users with ten clicks each; of a user all have one label."""
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "user_id": [f"user {number // 10}" for number in ids],
            "label": ["rare" if number // 10 % 20 == 0 else "cat" if number // 10 % 2 else "dog" for number in ids],
            "share": pa.array([1.0 if number % 2 else 0.25 for number in ids]),
            "gap": pa.array([None if number == 5 else number for number in ids], pa.int64()),
            "vector": pa.array([[float(number), 0.5] for number in ids], pa.list_(pa.float32(), 2)),
        }
    )


@pytest.fixture(scope="module", params=["server", "folder"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiltyard.Lake]:
    """Return a lake with the table `shop.clicks`."""
    root = tmp_path_factory.mktemp("training")
    server = None if request.param == "folder" else ServerProcess(root)
    lake = tiltyard.connect(root if server is None else server.url)
    lake.namespace("shop").create().table("clicks").ingest(clicks())
    yield lake
    assert server is None or server.stop() == 0


@pytest.fixture
def table(lake: tiltyard.Lake) -> Iterator[tiltyard.Table]:
    """Return the table, with its first rows alone in its newest version; all sets are dropped in the end."""
    table = lake.table("shop.clicks")
    if table.count() != ROWS:
        table.delete(f"id >= {ROWS}")
    yield table
    for made in lake.training_sets():
        made.drop()


def rows_of(training_set: tiltyard.lake.TrainingSet) -> dict[int, str]:
    """Return the split of each row, by its id."""
    return {number: split for split in training_set.splits for number in training_set.to_arrow(split)["id"].to_pylist()}


def test_set_stays_as_it_was_made_and_a_later_one_keeps_rows_where_they_were(
    lake: tiltyard.Lake, table: tiltyard.Table
) -> None:
    made = lake.training_set("shop.first", table, splits=SPLITS, by="user_id", seed=7, columns=["id", "user_id"])
    before, version = rows_of(made), table.version
    assert sum(made.splits.values()) == ROWS == len(before) and made.source.version == version
    assert set(made.to_arrow("val").column_names) == {"id", "user_id"}
    split_of_user = {number // 10: split for number, split in before.items()}
    assert all(split_of_user[number // 10] == split for number, split in before.items())  # no user is in two
    manifest = made.manifest
    assert (manifest["splits"], manifest["definition"]["seed"]) == (made.splits, 7)
    assert (manifest["source"]["table"], manifest["source"]["version"]) == ("shop$clicks", version)
    assert manifest["schema"] == {"id": "int64", "user_id": "string"} and manifest["made_by"].startswith("tiltyard ")
    (edge,) = lake.table("shop.first").lineage(depth=1).edges
    assert (edge.source.name, edge.source_version, edge.job_kind) == ("shop.clicks", version, "training_set")
    assert "shop.first" in table.lineage("downstream", depth=1).tables

    table.write(clicks(ROWS, 300))
    table.delete("id < 600")
    table.optimize(keep_versions_days=0)
    table.dataset().cleanup_old_versions(retain_versions=1, delete_unverified=True, error_if_tagged_old_versions=False)
    again = lake.training_set("shop.first")
    assert rows_of(again) == before and again.verify() == made.digest == manifest["digest"]
    same = lake.training_set("shop.first", "shop.clicks", splits=SPLITS, by="user_id", seed=7, columns="id,user_id")
    assert same.digest == made.digest
    assert [each.name for each in lake.training_sets()] == ["shop.first"]
    later = rows_of(lake.training_set("shop.later", table, splits=SPLITS, by="user_id", seed=7))
    assert {number: split for number, split in later.items() if number in before} == {
        number: split for number, split in before.items() if number in later
    }
    assert len(later) == 900 and len({*before, *later}) == 1500
    older = lake.training_set("shop.older", table.at(version), splits=SPLITS, by="user_id", seed=7)
    assert rows_of(older) == before and older.source.version == version < table.version

    table.write(clicks(0, 600))
    assert "<td>train</td>" in made._repr_html_() and "train" in repr(made)
    made.drop()
    assert "shop.first" not in lake.namespace("shop").tables()
    with pytest.raises(TableTagNotFoundError, match=r"no training set 'shop\.first'"):
        lake.training_set("shop.first")


def test_classes_keep_their_shares_and_weights_choose_rows(lake: tiltyard.Lake, table: tiltyard.Table) -> None:
    made = lake.training_set("classes", table, splits={"a": 0.5, "b": 0.25}, by="user_id", stratify="label", seed=3)
    users = {"rare": 6, "cat": 60, "dog": 54}
    for label, count in users.items():
        assert abs(made.manifest["classes"]["a"][label] / 10 - count * 0.5) <= 1
        assert abs(made.manifest["classes"]["b"][label] / 10 - count * 0.25) <= 1
    weighted = rows_of(lake.training_set("weighted", table, by="id", weights="share", seed=3))
    assert {number for number in range(ROWS) if number % 2} <= weighted.keys()
    assert 90 < sum(number % 2 == 0 for number in weighted) < 210  # a quarter of 600
    some = lake.training_set("some", table, by="id", stratify="label", weights={"cat": 0.0, "dog": 0.5}, seed=3)
    labels = Counter(some.to_arrow("train", ["label"])["label"].to_pylist())
    assert labels["rare"] == 60 and labels["cat"] == 0 and 200 < labels["dog"] < 340
    few = lake.training_set("few", table, by=["user_id", "label"], filter="label = 'rare' AND id < 500")
    assert few.splits == {"train": 30}
    assert [each.verify() == each.digest for each in lake.training_sets()] == [True] * 4


def test_without_by_a_row_is_told_by_its_key_or_its_stable_id(lake: tiltyard.Lake, table: tiltyard.Table) -> None:
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key), pa.field("label", pa.string())])
    rows, client = clicks(0, 200).select(schema.names), lake.catalog.client()
    lance.write_dataset(rows.cast(schema), namespace_client=client, table_id=["shop", "keyed"])
    keyed = lake.training_set("by_key", "shop.keyed", splits=SPLIT_HALVES, seed=2)
    assert keyed.manifest["units"] == ["id"]
    assert rows_of(keyed) == rows_of(lake.training_set("by_id", "shop.keyed", splits=SPLIT_HALVES, by="id", seed=2))
    lance.write_dataset(rows, namespace_client=client, table_id=["shop", "stable"], enable_stable_row_ids=True)
    stable = lake.namespace("shop").table("stable")
    before = rows_of(lake.training_set("by_row_id", stable, splits=SPLIT_HALVES, seed=2))
    stable.delete("id % 3 = 0")
    stable.write(clicks(200, 100).select(schema.names))
    stable.optimize()
    later = rows_of(lake.training_set("by_row_id_later", stable, splits=SPLIT_HALVES, seed=2))
    assert {number: later[number] for number in before if number % 3} == {
        number: split for number, split in before.items() if number % 3
    }


def test_rows_of_a_query_are_a_table_of_their_own(lake: tiltyard.Lake, table: tiltyard.Table) -> None:
    query = "SELECT user_id, count(*) AS clicks FROM shop.clicks WHERE id >= 100 GROUP BY user_id"
    version = table.version
    made = lake.training_set("per_user", query=query, splits={"train": 0.9, "val": 0.1}, by="user_id")
    assert sum(made.splits.values()) == 110 and made.source.name == "per_user_rows"
    (origin,) = made.manifest["sources"]
    assert (origin["table"], origin["version"]) == ("shop$clicks", version)
    assert set(made.to_arrow("train", ["clicks"])["clicks"].to_pylist()) == {10}
    assert "shop.clicks" in lake.table("per_user").lineage(depth=3).tables
    assert made.verify() == lake.training_set("per_user", query=query, splits=made.manifest["definition"]["splits"],
                                              by="user_id").digest  # fmt: skip
    made.drop()
    assert not {"per_user", "per_user_rows"} & set(lake.tables())


def test_refusals_are_one_sentence_and_leave_nothing(lake: tiltyard.Lake, table: tiltyard.Table) -> None:
    make = lake.training_set
    made = make("taken", table, by="id", splits={"train": 0.5, "val": 0.5})
    lake.snapshot("plain", ["shop.clicks"])
    there = sorted(lake.tables())
    clash, sql = "shop.clicks", "SELECT * FROM shop.clicks"
    refusals: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
        "fractions": (lambda: make("x", table, by="id", splits={"a": 0.9, "b": 0.2}), InvalidInputError, "sum to 1.1"),
        "no fraction": (lambda: make("x", table, by="id", splits={"a": 0}), InvalidInputError, "above 0"),
        "no splits": (lambda: make("x", table, by="id", splits={}), InvalidInputError, "1 to 16 names"),
        "a split's name": (lambda: make("x", table, by="id", splits={"a b": 1}), InvalidInputError, "word of letters"),
        "a split without rows": (
            lambda: make("x", table, filter="id < 3", by="id", splits={"a": 0.999, "b": 0.001}),
            InvalidInputError,
            "'b' would have no rows",
        ),
        "no by": (lambda: make("x", table), InvalidInputError, "neither a primary key nor stable row ids"),
        "no such by": (lambda: make("x", table, by="nope"), TableColumnNotFoundError, "by names 'nope'"),
        "nulls in by": (lambda: make("x", table, by="gap"), InvalidInputError, "'gap', which is null in 1 rows"),
        "a vector as by": (lambda: make("x", table, by="vector"), InvalidInputError, "integers, text"),
        "unknown columns": (lambda: make("x", table, by="id", columns="id,z"), TableColumnNotFoundError, "names 'z'"),
        "columns twice": (lambda: make("x", table, by="id", columns="id,id"), InvalidInputError, "each once"),
        "a filter": (lambda: make("x", table, by="id", filter="nope > 1"), InvalidInputError, "filter: No field"),
        "a seed": (lambda: make("x", table, by="id", seed=-1), InvalidInputError, "seed is -1"),
        "weights of text": (lambda: make("x", table, by="id", weights="label"), InvalidInputError, "one of numbers"),
        "weights above 1": (lambda: make("x", table, by="id", weights="id"), InvalidInputError, "from 0 to 1"),
        "weights of no classes": (lambda: make("x", table, by="id", weights={"cat": 1}), InvalidInputError, "stratify"),
        "a weight of no class": (
            lambda: make("x", table, by="id", stratify="label", weights={"cow": 1}),
            InvalidInputError,
            "no row has that label",
        ),
        "mixed classes": (
            lambda: make("x", table, by="label", stratify="user_id"),
            InvalidInputError,
            "rows of one label have several",
        ),
        "other arguments": (
            lambda: make("taken", table, by="id", splits={"train": 0.5, "val": 0.5}, seed=2),
            TableAlreadyExistsError,
            "other arguments: seed is 0, not 2",
        ),
        "another version": (
            lambda: make("taken", table.at(1), by="id", splits={"train": 0.5, "val": 0.5}),
            TableAlreadyExistsError,
            rf"it has version {made.manifest['version']}, not 1",
        ),
        "a table's name": (lambda: make(clash, table, by="id"), TableAlreadyExistsError, "is a table 'shop.clicks'"),
        "a snapshot": (lambda: make("plain"), InvalidInputError, "is a snapshot, and no training set"),
        "versions": (
            lambda: lake.calls.call("CreateSnapshot", name="x", tables=[["shop", "clicks"]], versions=[1, 2]),
            InvalidInputError,
            "1 tables and 2 versions",
        ),
        "a version that is gone": (
            lambda: lake.calls.call("CreateSnapshot", name="x", tables=[["shop", "clicks"]], versions=[9999]),
            TableVersionNotFoundError,
            "9999",
        ),
        "no source": (lambda: make("x", by="id"), InvalidInputError, "by is of a new set"),
        "two sources": (lambda: make("x", table, query=sql, by="id"), InvalidInputError, "leave one out"),
        "a query without by": (lambda: make("x", query=sql), InvalidInputError, "no identity of their own"),
        "a query's column": (lambda: make("x", query="SELECT z FROM shop.clicks", by="z"), InvalidInputError, "z"),
        "no query": (lambda: make("x", query="DROP TABLE a", by="z"), InvalidInputError, "one SELECT"),
        "no table": (lambda: make("x", "nope", by="id"), TableNotFoundError, "nope"),
        "no version": (lambda: make("x", table.at(99), by="id"), TableVersionNotFoundError, "99"),
        "no set": (lambda: make("x"), TableTagNotFoundError, "no training set 'x'"),
        "no name": (lambda: make("ü", table, by="id"), InvalidInputError, "ASCII"),
        "no split": (lambda: made.loader("dev"), InvalidInputError, "it has train, val"),
        "a rank": (lambda: made.loader(rank=2, world_size=2), InvalidInputError, "ranks are 0 to 1"),
        "a format": (lambda: made.loader(format="csv"), InvalidInputError, "arrow, numpy, torch"),
        "a batch size": (lambda: made.loader(batch_size=0), InvalidInputError, "batch_size is 0"),
        "no number": (lambda: made.loader(epochs=True), InvalidInputError, "epochs is True"),
        "a column": (lambda: made.loader(columns="id,z"), TableColumnNotFoundError, "'z', and the set has no such"),
        "decode": (lambda: made.loader(columns="id", decode={"label": len}), TableColumnNotFoundError, "'label'"),
        "a state": (lambda: made.loader().load_state_dict({}), InvalidInputError, "of another run: its digest"),
    }
    for what, (call, error, sentence) in refusals.items():
        with pytest.raises(error, match=sentence) as raised:
            call()
        assert len(str(raised.value).splitlines()) == 1, what
        assert (sorted(lake.tables()), [each.name for each in lake.snapshots()]) == (there, ["plain", "taken"]), what
    lake.at("plain").drop()
    with pytest.raises(TypeError, match="no argument 'suffle'"):
        made.loader(suffle=1)  # type: ignore[call-arg]  # what somebody may write


def test_set_tells_what_is_not_as_it_was(lake: tiltyard.Lake, table: tiltyard.Table) -> None:
    made = lake.training_set("damaged", table, by="id", splits={"train": 0.5, "val": 0.5})
    for fact, value, sentence in (
        ("files", "0", "The digest of the files of shop.clicks is"),
        ("digest", "0", "The digest of the chosen rows is"),
        ("schema", {}, "The schema is"),
    ):
        own = lake.training_set("damaged")
        own.manifest = {**made.manifest, fact: value}
        with pytest.raises(InvalidTableStateError, match=f"{sentence}.*the manifest has"):
            own.verify()
    assert made.verify() == made.digest
    other = lake.namespace("shop").table("short")
    other.ingest(clicks(0, 50))
    lake.training_set("gone", other, by="id")
    other.drop()
    with pytest.raises(TableNotFoundError):
        lake.training_set("gone").loader()
    other.ingest(clicks(0, 60))
    with pytest.raises(InvalidTableStateError, match=r"files of shop\.short is"):  # another table of that name
        lake.training_set("gone").loader()
    lake.training_set("gone").drop()
    assert "gone" not in lake.tables() and other.count() == 60
    kept = lake.namespace("shop").table("kept")
    kept.ingest(clicks(0, 50))
    lost = lake.training_set("lost", kept, by="id")
    kept.write(clicks(50, 50))
    files = lance.dataset(lost.manifest["source"]["location"])  # somebody removes what the snapshot keeps
    files.tags.delete("lost")
    files.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    for use in (lost.verify, lambda: lake.training_set("lost").loader()):
        with pytest.raises(TableVersionNotFoundError, match=r"Version 1 of shop\.kept, which .* 'lost' is of, is gone"):
            use()


def test_what_a_killed_process_left_is_no_set_and_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tiltyard.connect(tmp_path / "root")  # in this process, which stops where it would be killed
    lake.table("clicks").ingest(clicks(0, 100))
    with monkeypatch.context() as patch:
        patch.setattr(
            "tiltyard.lake.training.training_set.create_snapshot",
            lambda *_, **__: (_ for _ in ()).throw(MemoryError("killed")),
        )
        with pytest.raises(MemoryError):
            lake.training_set("s", "clicks", by="id", seed=1)
    assert lake.training_sets() == [] and "s" in lake.tables()
    lake.table("clicks").write(clicks(100, 100))
    with pytest.raises(TableAlreadyExistsError, match="needs a name that is free"):
        lake.training_set("s", "clicks", by="id", seed=2)
    made = lake.training_set("s", "clicks", by="id", seed=1)
    assert made.splits == {"train": 100} and made.verify() == made.digest and made.source.version == 1


def test_page_examples_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for code in blocks:
        if "torch.utils.data" not in code:  # that is not installed here
            exec(compile(code, "docs/training-sets.md", "exec"), names)  # our own page
    assert len(blocks) == 3 and names["made"].verify() == names["made"].digest
