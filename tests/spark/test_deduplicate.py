"""Deduplication: the groups are those that comparing all pairs finds, again after changes, beside other jobs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

import tiltyard
from tests.services.cases import check_each
from tests.services.server import ServerProcess
from tiltyard.pipeline.deduplicate import groups, tasks
from tiltyard.pipeline.deduplicate.groups import connect_arrays, connect_pairs
from tiltyard.pipeline.deduplicate.signatures import normalize_text
from tiltyard.pipeline.deduplicate.tasks import pair_bucket
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.runs import LocalRun, RunCanceledError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Mapping[int, Any]
Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, shared_server: ServerProcess) -> tiltyard.Lake:
    return tiltyard.connect(shared_server.url)


def groups_of(
    rows: Rows, alike: Callable[[Any, Any], bool], first: Callable[[int], Any] = int
) -> dict[int, int | None]:
    """Return of each row the first row of its group, None for that one itself, by comparing all pairs."""
    group = {row: {row} for row in rows}
    for one, other in itertools.combinations(rows, 2):
        if rows[one] is not None and rows[other] is not None and alike(rows[one], rows[other]):
            joined = group[one] | group[other]
            group |= dict.fromkeys(joined, joined)
    heads = {row: min(members, key=first) for row, members in group.items()}
    return {row: None if head == row else head for row, head in heads.items()}


@cache  # each text is compared with all others
def shingles(text: str, size: int = 5) -> frozenset[str]:
    text = normalize_text(text)
    return frozenset(text[at : at + size] for at in range(max(1, len(text) - size + 1)))


def jaccard(one: str, other: str) -> bool:
    left, right = shingles(one), shingles(other)
    return len(left & right) >= 0.8 * len(left | right)


def some_texts(seed: int, count: int) -> list[str | None]:
    """Return texts of which half are another one changed in a word or two, some equal, in chains and by chance."""
    chance = random.Random(seed)
    words = [f"word{number}" for number in range(400)]
    texts: list[str | None] = []
    for _ in range(count):
        if texts and chance.random() < 0.5 and (source := chance.choice(texts)) is not None:
            parts = source.split(" ")
            for _ in range(chance.randrange(3)):
                parts[chance.randrange(len(parts))] = chance.choice(words)
            texts.append(" ".join(parts))
        else:
            texts.append(" ".join(chance.choices(words, k=chance.randrange(8, 25))))
    return [*texts, None, None, "", " ", "a", "A", "b", "THE SAME  text", "the same text"]


def made_of_texts(lake: tiltyard.Lake, name: str, seed: int) -> tuple[tiltyard.Table, dict[int, str | None]]:
    """Return a table of two fragments, of which a row was deleted, and its texts by id."""
    texts = dict(enumerate(some_texts(seed, 300)))
    table = lake.table(name)
    table.ingest(text_rows(list(texts.values())[:150]))
    table.write(text_rows(list(texts.values())[150:], 150))
    table.delete("id = 7")
    del texts[7]
    return table, texts


def column(table: tiltyard.Table, name: str = "duplicate_of") -> dict[Any, Any]:
    rows = table.to_arrow(columns=["id", name])
    return dict(zip(rows["id"].to_pylist(), rows[name].to_pylist(), strict=True))


def text_rows(texts: Iterable[str | None], start: int = 0) -> pa.Table:
    values = pa.array(list(texts), pa.string())
    return pa.table({"id": pa.array(range(start, start + len(values)), pa.int64()), "text": values})


def test_groups_of_texts_are_those_of_all_pairs(lake: tiltyard.Lake, fresh: Fresh) -> None:
    films, texts = made_of_texts(lake, fresh("films"), 1)
    run = films.deduplicate("text", id="id")
    expected = groups_of(texts, jaccard)
    assert column(films) == expected
    duplicates = [row for row in expected.values() if row is not None]
    assert (int(run.figures["duplicates"]), int(run.figures["groups"])) == (len(duplicates), len(set(duplicates)))
    assert int(run.figures["hashed"]) == run.rows == len(texts) and int(run.figures["alike"]) > 20
    assert films.lineage().edges[0].job_kind == "deduplicate"
    version = films.version
    again = films.deduplicate("text", id="id")
    assert (again.figures["hashed"], films.version, again.version) == ("0", version, version)


def test_groups_follow_rows_that_are_added_changed_deleted_and_compacted(lake: tiltyard.Lake, fresh: Fresh) -> None:
    films, texts = made_of_texts(lake, fresh("films"), 2)
    films.deduplicate("text", id="id")
    duplicates = [row for row in column(films).values() if row is not None]
    one, other = (head for head in list(dict.fromkeys(duplicates))[:2])
    linking = [texts[one], "entirely new, and like nothing else", texts[other]]
    films.write(text_rows([linking[0], linking[1]], 1000))
    films.delete(f"id = {one}")
    films.upsert(text_rows([linking[2]], 3), on="id")
    texts |= {1000: linking[0], 1001: linking[1], 3: linking[2]}
    del texts[one]
    assert films.deduplicate("text", id="id").figures["hashed"] == "3"
    assert column(films) == groups_of(texts, jaccard)
    films.optimize()
    assert films.deduplicate("text", id="id").figures["hashed"] == "0"
    assert column(films) == groups_of(texts, jaccard)


def test_new_rows_merge_groups_and_a_view_has_one_row_of_each(lake: tiltyard.Lake, fresh: Fresh) -> None:
    words = [f"w{number:03}" for number in range(72)]
    chain = [" ".join(words[at : at + 40]) for at in range(0, 32, 4)]  # neighbours are alike, and few others
    films, once = lake.table(fresh("films")), fresh("once")
    start = [chain[at] for at in (0, 1, 2, 4, 5, 6, 7)]
    films.ingest(text_rows(start).append_column("year", pa.array([5, 9, None, 9, 1, 2, 3], pa.int32())))
    films.deduplicate("text", id="id", order_by="year:desc")
    assert column(films) == {0: 1, 1: None, 2: 1, 3: None, 4: 3, 5: 3, 6: 3}

    view = lake.create_view(once, f"SELECT id, text FROM {films.name} WHERE duplicate_of IS NULL")
    view.refresh()
    assert sorted(view.to_arrow()["id"].to_pylist()) == [1, 3]
    films.write(text_rows([chain[3]], 7).append_column("year", pa.array([0], pa.int32())))
    films.deduplicate("text", id="id", order_by="year:desc")
    assert column(films) == {1: None, **dict.fromkeys((0, 2, 3, 4, 5, 6, 7), 1)}
    assert view.refresh().figures["mode"] == "incremental"
    assert view.to_arrow()["id"].to_pylist() == [1]


def test_groups_of_vectors_and_of_equal_values_are_those_of_all_pairs(lake: tiltyard.Lake, fresh: Fresh) -> None:
    chance = np.random.default_rng(4)
    vectors = chance.standard_normal((240, 16)).astype(np.float32)
    vectors[120:] = vectors[:120] + chance.standard_normal((120, 16)) * 0.3 * chance.random((120, 1))
    vectors[5] = vectors[6]
    vectors[7], vectors[8, 3] = 0, np.nan
    values: list[Any] = [*vectors, None]
    rows = pa.table(
        {
            "id": [f"k{number:03}" for number in range(241)],
            "v": pa.array([None if value is None else value.tolist() for value in values], pa.list_(pa.float32(), 16)),
            "code": pa.array([number % 50 or None for number in range(241)], pa.uint64()),
        }
    )
    vectors_table = lake.table(fresh("vectors"))
    vectors_table.ingest(rows)
    exact = {number: None if value is None else value.astype(float) for number, value in enumerate(values)}

    def cosine(one: Any, other: Any) -> bool:
        with np.errstate(invalid="ignore"):
            return bool(1 - one @ other / np.linalg.norm(one) / np.linalg.norm(other) <= 0.05)

    def check(case: tuple[dict[str, Any], Rows, Callable[[Any, Any], bool]]) -> None:
        options, compared, alike = case
        vectors_table.deduplicate(id="id", into="copy_of", **options)
        expected = {
            f"k{row:03}": None if head is None else f"k{head:03}" for row, head in groups_of(compared, alike).items()
        }
        assert len({*expected.values()}) > 5
        assert column(vectors_table, "copy_of") == expected
        vectors_table.drop_columns(["copy_of", "copy_of_signature"])

    codes: Rows = {number: number % 50 or None for number in range(241)}
    cases: list[tuple[dict[str, Any], Rows, Callable[[Any, Any], bool]]] = [
        ({"on": "v", "method": "vector"}, exact, cosine),
        (
            {"on": "v", "method": "vector", "metric": "l2", "threshold": 0.4},
            exact,
            lambda one, other: bool(((one - other) ** 2).sum() <= 0.4),
        ),
        ({"on": "code", "method": "exact"}, codes, lambda one, other: one == other),
    ]
    check_each(cases, check)


def test_pairs_of_large_buckets_are_in_proportion_to_rows_and_connect_them(lake: tiltyard.Lake, fresh: Fresh) -> None:
    near = [f"{'the same boilerplate of many words, in every text, ' * 4}{number}" for number in range(900)]
    films = lake.table(fresh("films"))
    films.ingest(text_rows([*near, *near[:1] * 3000]))
    run = films.deduplicate("text", id="id")
    assert column(films) == {0: None, **dict.fromkeys(range(1, 3900), 0)}
    bands = 16
    assert 899 <= int(run.figures["compared"]) <= bands * tasks.MAX_NEIGHBOURS * 900

    bucket, row, none = pa.array([1] * 5000), pa.array(range(5000)), pa.array([0] * 5000)
    batch = pa.record_batch([bucket, row, none, row], ["bucket", "first", "second", "row"])
    assert sum(pairs.num_rows for pairs in pair_bucket(iter([batch]))) < tasks.MAX_NEIGHBOURS * 5000


def test_pairs_are_connected_by_rounds_of_spark_as_in_this_process(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_DRIVER_PAIRS", 0)
    chance = random.Random(3)
    names = chance.sample(range(10_000), 300)
    chain = [*itertools.pairwise(sorted(names[:100])), *itertools.pairwise(names[100:200])]
    pairs = [*chain, *((names[200], name) for name in names[201:250]), *zip(names[250:275], names[275:], strict=True)]
    ordered = [tuple(sorted(pair)) for pair in pairs]
    frame = spark.createDataFrame(ordered, "low bigint, high bigint")
    found = connect_pairs(spark, LocalRun(), frame, len(ordered)).toArrow()
    rounds = dict(zip(*(found[name].to_pylist() for name in found.column_names), strict=True))
    here = connect_arrays(*np.array(ordered).T)
    assert rounds == dict(zip(*(values.tolist() for values in here), strict=True))
    parts: Sequence[Sequence[int]] = [names[:100], names[100:200], names[200:250]]
    assert all({rounds[name] for name in part} == {min(part)} for part in parts)


BAD: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TableColumnNotFoundError, "no column 'nobody'", {"on": "nobody"}),
    (InvalidInputError, "'id' is int64, and minhash compares texts", {"on": "id"}),
    (InvalidInputError, "one vector in each row, and 'text' is none", {"method": "vector"}),
    (InvalidInputError, "has vectors of int64", {"on": "whole", "method": "vector"}),
    (InvalidInputError, "exact cannot compare", {"on": "v", "method": "exact"}),
    (InvalidInputError, "threshold is 0.1: it is 0.3 to 1", {"threshold": 0.1}),
    (InvalidInputError, "threshold is nan", {"threshold": float("nan")}),
    (InvalidInputError, "threshold is 0.9: it is 0 to 0.3", {"on": "v", "method": "vector", "threshold": 0.9}),
    (InvalidInputError, "threshold is 0: ", {"on": "v", "method": "vector", "threshold": 0}),
    (InvalidInputError, "give one for l2", {"on": "v", "method": "vector", "metric": "l2"}),
    (InvalidInputError, "threshold is nothing that the method exact uses", {"method": "exact", "threshold": 0.9}),
    (InvalidInputError, "shingle is nothing that", {"on": "v", "method": "vector", "shingle": 3}),
    (InvalidInputError, "metric is nothing that", {"metric": "l2"}),
    (InvalidInputError, "shingle is 0", {"shingle": 0}),
    (InvalidInputError, "method is one of exact, minhash, vector", {"method": "guess"}),
    (InvalidInputError, "id: name the column", {"id": None}),
    (TableColumnNotFoundError, "id: the table has no column", {"id": "x"}),
    (InvalidInputError, "ids are whole numbers or texts", {"id": "v"}),
    (InvalidInputError, "'twice' has 1 values more than once", {"id": "twice"}),
    (InvalidInputError, "'none' is null in 1 rows", {"id": "none"}),
    (InvalidInputError, "has a column 'twice' of its own", {"into": "twice"}),
    (InvalidInputError, "one of the columns that are read", {"into": "text"}),
    (InvalidInputError, "cannot be the name of a column", {"into": "a.b"}),
    (TableColumnNotFoundError, "order_by: the table has no column", {"order_by": "x:desc"}),
    (InvalidInputError, "order_by: 'v' is .* no order", {"order_by": "v"}),
]


def test_what_cannot_be_compared_is_told_why_and_nothing_is_written(lake: tiltyard.Lake, fresh: Fresh) -> None:
    films = lake.table(fresh("films"))
    rows = text_rows(["a", "b"])
    for name, values in {
        "v": pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1)),
        "whole": pa.array([[1], [2]], pa.list_(pa.int64(), 1)),
        "twice": pa.array([1, 1]),
        "none": pa.array([1, None]),
    }.items():
        rows = rows.append_column(name, values)
    films.ingest(rows)

    def check(case: tuple[type[Exception], str, dict[str, Any]]) -> None:
        error, message, fields = case
        with pytest.raises(error, match=message):
            films.deduplicate(**{"on": "text", "id": "id"} | fields)
        assert films.version == 1

    check_each(BAD, check)
    films.deduplicate("text", id="id")
    for fields in ({"on": "text", "id": "id", "into": "duplicate_of_signature"}, {"on": "twice", "method": "exact"}):
        with pytest.raises(InvalidInputError, match="into: "):
            films.deduplicate(**{"id": "id"} | fields)  # type: ignore[arg-type]  # as above


def test_job_that_is_stopped_goes_on_with_what_it_has_hashed(
    lake: tiltyard.Lake, spark: SparkSession, fresh: Fresh
) -> None:
    films = lake.table(fresh("films"))
    films.ingest(text_rows(["one text of many words", "one text of many words", "another text"]))

    stops = ["compare"]

    class Stopped(LocalRun):
        def progress(self, **figures: object) -> None:
            if figures.get("stage") in stops:
                self.canceled.set()
            super().progress(**figures)

    run = Stopped()
    job = {"table": films.name, "on": "text", "id": "id"}
    with pytest.raises(RunCanceledError):
        find_job("deduplicate").run(run, lake.catalog, spark, job)
    hashed = films.version
    assert column(films) == {0: None, 1: None, 2: None}
    stops.clear()
    run.canceled.clear()
    figures = find_job("deduplicate").run(run, lake.catalog, spark, job)
    assert column(films) == {0: None, 1: 0, 2: None}
    assert (figures["hashed"], figures["version"], films.version) == (3, hashed + 1, hashed + 1)
    assert find_job("deduplicate").run(run, lake.catalog, spark, job)["version"] == hashed + 1
