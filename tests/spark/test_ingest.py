"""Ingest through a running server: every format, values compared one by one, and nothing visible of a failed job."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import lancedb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, TableNotFoundError

from tiltyard.pipeline.catalog_client import table as table_of
from tiltyard.pipeline.ingest.job import ingest, upsert
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.sources import discovery, inspection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.table_location import CatalogConnection

Fresh = Callable[[str], str]


@dataclass(slots=True)
class DyingRun(LocalRun):
    """A run whose driver dies when it would save more than so many checkpoints."""

    saves: int = 0

    def save_checkpoint(self, key: str, value: str) -> None:
        if key.startswith("share-"):
            self.saves -= 1
        if self.saves < 0:
            raise KeyboardInterrupt
        super(DyingRun, self).save_checkpoint(key, value)


def rows(count: int, first: int = 0) -> pa.Table:
    ids = list(range(first, first + count))
    vectors = pa.array([[float(number), 0.5] for number in ids], pa.list_(pa.float32(), 2))
    return pa.table({"id": ids, "text": [f"row {number}" for number in ids], "vector": vectors})


def stored(catalog: CatalogConnection, name: str) -> pa.Table:
    """Return the table, read by plain pylance."""
    table = table_of(catalog, name)
    return lance.dataset(table.location().uri).to_table()


@pytest.fixture
def put(catalog: CatalogConnection, spark: SparkSession) -> Callable[..., Any]:
    """Run an ingest; its figures."""

    def call(source: Path | str, name: str, **options: Any) -> Any:
        return ingest(options.pop("run", LocalRun()), catalog, spark, str(source), name, **options)

    return call


def test_ingest_parquet_shards_is_all_rows_in_order_and_one_version(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("parquet")
    for shard in range(3):
        pq.write_table(rows(1000, shard * 1000), tmp_path / f"train-{shard}.parquet", row_group_size=300)
    run = LocalRun()
    figures = put(tmp_path, name, run=run)
    assert (figures["rows"], figures["rejected"], figures["version"]) == (3000, 0, 1)
    assert stored(catalog, name) == rows(3000)
    assert run.figures["rows"] == "3000" and run.figures["tasks"] == run.figures["tasks_total"]


def _write(kind: str, folder: Path, table: pa.Table) -> Path:
    file = folder / f"rows.{kind}"
    plain = table.drop_columns(["vector"])
    if kind == "feather":
        pyarrow.feather.write_feather(table, file, chunksize=100)
    elif kind == "arrows":
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, 100)
    elif kind == "lance":
        lance.write_dataset(table, file, max_rows_per_file=100)
    elif kind.startswith("jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
        file.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    else:
        with file.open("w", newline="") as out:
            lines = csv.DictWriter(out, plain.schema.names, delimiter="\t" if kind == "tsv" else ",")
            lines.writeheader()
            lines.writerows(plain.to_pylist())
    return file


@pytest.mark.parametrize("kind", ["feather", "arrows", "lance", "jsonl", "jsonl.gz", "csv", "tsv"])
def test_ingest_other_formats_are_the_same_rows(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path, kind: str
) -> None:
    name = fresh("format")
    file = _write(kind, tmp_path, rows(500))
    casts = {"vector": "float32[2]"} if kind.startswith("jsonl") else {}
    put(file, name, cast=casts)
    expected = rows(500)
    assert stored(catalog, name) == (expected.drop_columns(["vector"]) if kind in ("csv", "tsv") else expected)


def test_ingest_files_that_differ_are_looked_at_in_tasks_and_bridged_or_named(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_FILES_IN_DRIVER", 1)
    name = fresh("differ")
    for year, columns in ((2013, {"id": pa.array([1], pa.int32())}), (2014, {"id": [1 << 40], "tail": ["N1"]})):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table(columns), tmp_path / f"year={year}" / "1.parquet")
    put(tmp_path, name)
    expected = [{"id": 1, "tail": None, "year": 2013}, {"id": 1 << 40, "tail": "N1", "year": 2014}]
    assert stored(catalog, name).to_pylist() == expected
    (tmp_path / "year=2015").mkdir()
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "year=2015" / "1.parquet")
    second_name = fresh("differ")
    with pytest.raises(
        InvalidInputError, match=r"Column 'id' is string in .*year=2015/1.parquet and int.* in .*year=2013"
    ):
        put(tmp_path, second_name)
    with pytest.raises(TableNotFoundError):
        table_of(catalog, second_name).describe()


def test_ingest_large_csv_is_cut_at_records_that_tasks_look_for(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_RANGES_IN_DRIVER", 1)
    monkeypatch.setattr(inspection, "RANGE_BYTES", 4000)
    name, texts = fresh("cut"), [f'{number},"two\nlines, a ""{number}""' for number in range(500)]
    (tmp_path / "1.csv").write_text("id,text\n" + "".join(f'{text}"\n' for text in texts))
    put(tmp_path / "1.csv", name)
    assert stored(catalog, name)["text"].to_pylist() == [f'two\nlines, a "{number}"' for number in range(500)]


def test_ingest_text_is_told_with_the_types_that_were_guessed_and_added_in_those_of_the_table(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("guessed")
    (tmp_path / "1.csv").write_text("id,zip,at\n1,01234,2013-01-31T10:00:00+02:00\n")
    (tmp_path / "2.csv").write_text("at,id,zip\n,2,98101\n")
    assert put(tmp_path / "1.csv", name)["guessed"] == (
        "--cast 'id=int64' --cast 'zip=string' --cast 'at=timestamp[us, tz=+02:00]'"
    )
    assert "guessed" not in put(tmp_path / "2.csv", name, mode="append")
    assert stored(catalog, name)["zip"].to_pylist() == ["01234", "98101"]
    assert str(stored(catalog, name)["at"][0].as_py()) == "2013-01-31 10:00:00+02:00"


def test_ingest_split_of_a_data_set_is_that_split(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("split")
    (tmp_path / "data").mkdir()
    for number, split in enumerate(["train", "test"]):
        pq.write_table(rows(10, number * 10), tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    (tmp_path / "README.md").write_text("a card")
    put(tmp_path, name, split="test")
    assert stored(catalog, name) == rows(10, 10)


def test_ingest_image_folder_with_metadata_is_images_and_rejects(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name, folder = fresh("images"), tmp_path / "images"
    folder.mkdir()
    lines = [{"file_name": f"{number}.png", "caption": f"picture {number}"} for number in range(4)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for number in range(3):
        (folder / f"{number}.png").write_bytes(bytes([number]) * 10)
    figures = put(folder, name, rejects=str(tmp_path / "bad"))
    assert (figures["rows"], figures["rejected"]) == (3, 1)
    assert stored(catalog, name).to_pylist() == [
        {**line, "image": bytes([number]) * 10} for number, line in enumerate(lines[:3])
    ]
    [rejected] = [json.loads(line) for file in (tmp_path / "bad").iterdir() for line in file.read_text().splitlines()]
    assert rejected["row"]["file_name"] == "3.png" and "cannot be read" in rejected["reason"]


def test_ingest_csv_with_invalid_rows_writes_rejects_with_the_reason(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name, file = fresh("bad"), tmp_path / "rows.csv"
    file.write_text("id,score\n" + "".join(f"{n},{n / 2}\n" for n in range(100)) + "x,1.0\n7\n101,oops\n102,51.0\n")
    put(file, name, cast={"id": "int64", "score": "float64"}, rejects=str(tmp_path / "bad"), check=["rejected == 3"])
    table = stored(catalog, name)
    assert table["id"].to_pylist() == [*range(100), 102]
    rejects = [json.loads(line) for part in (tmp_path / "bad").iterdir() for line in part.read_text().splitlines()]
    assert {reject["row"] for reject in rejects} == {"x,1.0", "7", "101,oops"}
    assert all(str(file) in reject["reason"] for reject in rejects)


UDF = """
import pyarrow as pa
import pyarrow.compute as pc


def lengths(batch):
    if pc.any(pc.equal(batch["text"], "row 7")).as_py():
        raise ValueError("seven is not taken")
    return pa.record_batch([batch["id"], pc.utf8_length(batch["text"]).cast(pa.int64())], ["key", "length"])
"""


def test_ingest_udf_on_the_way_makes_the_columns_and_its_failures_are_rows(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("udf")
    pq.write_table(rows(50), tmp_path / "rows.parquet")
    (tmp_path / "own.py").write_text(UDF)
    put(tmp_path / "rows.parquet", name, udf=f"{tmp_path / 'own.py'}:lengths", rejects=str(tmp_path / "bad"))
    assert stored(catalog, name).to_pylist() == [{"key": n, "length": len(f"row {n}")} for n in range(50) if n != 7]


def test_ingest_append_maps_and_casts_to_the_table(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("append")
    pq.write_table(rows(10), tmp_path / "first.parquet")
    put(tmp_path / "first.parquet", name)
    appended = pa.table(
        {"number": pa.array([10, 11], pa.int16()), "vector": [[10.0, 0.5], [11.0, 0.5]], "more": [1, 2]}
    )
    pq.write_table(appended, tmp_path / "second.parquet")
    options = {"mode": "append", "select": ["number", "vector"], "rename": {"number": "id"}}
    with pytest.raises(InvalidInputError, match="no column 'text'"):
        put(tmp_path / "second.parquet", name, **options)
    figures = put(tmp_path / "second.parquet", name, null=["text"], **options)
    assert figures["version"] == 2
    expected = rows(12).to_pylist()
    assert stored(catalog, name).to_pylist() == expected[:10] + [{**row, "text": None} for row in expected[10:]]


def test_ingest_create_of_a_table_that_is_there_is_refused_and_overwrite_is_not(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("modes")
    pq.write_table(rows(10), tmp_path / "rows.parquet")
    pq.write_table(rows(3).select(["id"]), tmp_path / "other.parquet")
    put(tmp_path / "rows.parquet", name)
    with pytest.raises(TableAlreadyExistsError):
        put(tmp_path / "rows.parquet", name)
    put(tmp_path / "other.parquet", name, mode="overwrite")
    assert stored(catalog, name) == rows(3).select(["id"])
    with pytest.raises(TableNotFoundError):
        put(tmp_path / "rows.parquet", fresh("missing"), mode="append")


def test_ingest_driver_that_died_is_resumed_and_finished_shares_are_not_written_again(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("resumed")
    for shard in range(4):
        pq.write_table(rows(100, shard * 100), tmp_path / f"{shard}.parquet")
    run = DyingRun(saves=1)
    with pytest.raises(KeyboardInterrupt):
        put(tmp_path, name, run=run)
    assert [key for key in run.checkpoints() if key.startswith("share-")]
    files = {file.name for file in Path(table_of(catalog, name).location().uri).rglob("*.lance")}
    run.saves = 1000
    figures = put(tmp_path, name, run=run)
    assert figures["rows"] == 400 and stored(catalog, name) == rows(400)
    used = {file.path for part in table_of(catalog, name).dataset().get_fragments() for file in part.data_files()}
    assert used & files, "what was kept is used"


def test_ingest_that_is_resumed_writes_anew_what_was_kept_and_is_gone(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("gone")
    for shard in range(4):
        pq.write_table(rows(100, shard * 100), tmp_path / f"{shard}.parquet")
    run = DyingRun(saves=1)
    with pytest.raises(KeyboardInterrupt):
        put(tmp_path, name, run=run)
    for file in Path(table_of(catalog, name).location().uri).rglob("*.lance"):
        file.unlink()
    run.saves = 1000
    assert put(tmp_path, name, run=run)["rows"] == 400
    assert stored(catalog, name) == rows(400)


def test_ingest_tried_again_after_its_commit_adds_nothing(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name, run = fresh("again"), LocalRun()
    pq.write_table(rows(10), tmp_path / "rows.parquet")
    assert put(tmp_path / "rows.parquet", name, run=run) == put(tmp_path / "rows.parquet", name, run=run)
    more = LocalRun()
    for _ in range(2):
        assert put(tmp_path / "rows.parquet", name, run=more, mode="append")["version"] == 2
    assert stored(catalog, name).num_rows == 20


def test_ingest_appends_at_the_same_time_are_all_there_once(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("together")
    for part in range(3):
        pq.write_table(rows(50, part * 50), tmp_path / f"{part}.parquet")
    put(tmp_path / "0.parquet", name)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda part: put(tmp_path / f"{part}.parquet", name, mode="append"), [1, 2]))
    assert sorted(stored(catalog, name)["id"].to_pylist()) == list(range(150))


def test_ingest_of_bytes_as_blobs_stores_them_apart(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name, large = fresh("blobs"), bytes(range(256)) * 20_000
    images = [b"small", None, large]
    pq.write_table(pa.table({"id": [0, 1, 2], "image": pa.array(images, pa.binary())}), tmp_path / "images.parquet")
    assert put(tmp_path / "images.parquet", name, cast={"image": "blob"})["rows"] == 3
    assert put(tmp_path / "images.parquet", name, mode="append")["rows"] == 3
    dataset = lance.dataset(table_of(catalog, name).location().uri)
    assert dataset.schema.field("image").type.extension_name == "lance.blob.v2"
    blobs = [content for _, content in dataset.read_blobs("image", indices=list(range(6)), preserve_order=True)]
    assert blobs == images * 2
    files = [path for path in Path(dataset.uri).rglob("*.blob") if path.stat().st_size == len(large)]
    assert len(files) == 2
    table = lancedb.connect("db://x", api_key="none", host_override=dict(catalog.properties)["uri"]).open_table(name)
    hits = table.search().select(["id"]).with_row_id(True).to_arrow()
    assert table.fetch_blobs("image", hits["_rowid"].to_pylist()).to_pylist() == images * 2


def test_ingest_of_blobs_that_fails_leaves_no_files_of_theirs(
    put: Any, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("blobs")
    rows_ = pa.table({"id": [0, 1], "image": [bytes(5_000_000), b""]})
    pq.write_table(rows_, tmp_path / "images.parquet")
    put(tmp_path / "images.parquet", name, cast={"image": "blob"})
    folder = Path(table_of(catalog, name).location().uri)
    before = sorted(path for path in folder.rglob("*") if path.is_file())
    with pytest.raises(InvalidInputError):
        put(tmp_path / "images.parquet", name, mode="append", check=["between(id, 5, 9)"])
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == before


def test_files_that_spark_reads_are_ingested_and_upserted(
    spark: SparkSession, catalog: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    name, folder = fresh("orc"), tmp_path / "rows"
    spark.range(3).selectExpr("id", "array(id, 7L) AS numbers", "concat('row ', id) AS text").write.orc(str(folder))
    ingest(LocalRun(), catalog, spark, f"{folder}/*.orc", name, select=["id", "text"])
    options: dict[str, Any] = {"on": ["id"], "format": "orc", "select": ["id", "text"]}
    assert upsert(LocalRun(), catalog, spark, str(folder), name, **options)["updated"] == 3
    assert stored(catalog, name).sort_by("id").to_pylist() == [{"id": n, "text": f"row {n}"} for n in range(3)]
    refused: list[tuple[str, dict[str, Any], str]] = [
        (str(tmp_path / "none.orc"), {}, "cannot be read as orc: "),
        (f"{folder}/*.orc", {"delimiter": ";"}, "delimiter is no option of orc"),
        (str(tmp_path / "rows.avro"), {}, "Spark reads Avro by a package of its own: name it by --conf"),
    ]
    for source, arguments, sentence in refused:
        with pytest.raises(InvalidInputError, match=sentence):
            ingest(LocalRun(), catalog, spark, source, fresh("other"), **arguments)
