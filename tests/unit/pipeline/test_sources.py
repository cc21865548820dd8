"""Sources of files: schemas that differ, partition folders, and text that is read without silent loss."""

from __future__ import annotations

import csv as csv_module
import datetime as dt
import gzip
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Literal

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.type_names import format_type, parse_type
from tiltyard.model.text.yaml_text import ContentError
from tiltyard.pipeline.plans.plan_file import parse_plan
from tiltyard.pipeline.sources import discovery, inspection, text_blocks
from tiltyard.pipeline.sources.casts import ColumnSelection, check_time_zones
from tiltyard.pipeline.sources.csv_records import CsvDialect, TextState, split_records
from tiltyard.pipeline.sources.discovery import SourceOptions, find_source
from tiltyard.pipeline.sources.file_options import FileOptions, given_options, pick_options
from tiltyard.pipeline.sources.inspection import adapt_to_table, inferred_casts
from tiltyard.pipeline.sources.readers import Format, Piece
from tiltyard.pipeline.sources.record_cuts import ScanTask, cut_at_records
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.sources.types import SchemaMode, common_type
from tiltyard.pipeline.table_location import scan_fragments


def rows_of(path: Path | str, table: pa.Schema | None = None, **options: Any) -> tuple[pa.Table, list[str]]:
    """Return the rows of a source as a job reads them, and the reasons of rejected rows."""
    files = pick_options(FileOptions, options)
    source = find_source(
        SourceOptions(str(path), files, **{name: options[name] for name in options.keys() - files.keys()})
    )
    reading = source.reader if table is None else adapt_to_table(source.reader, table, ColumnSelection())
    rows = [row for piece in source.pieces for row in reading.read(piece)]
    batches = [row for row in rows if not isinstance(row, RejectedRow)]
    return pa.Table.from_batches(batches, reading.schema), [row.reason for row in rows if isinstance(row, RejectedRow)]


def read(path: Path | str, **options: Any) -> pa.Table:
    rows, rejected = rows_of(path, **options)
    assert not rejected
    return rows


def write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


WRITERS: Mapping[str, Callable[[pa.Table, Path], None]] = {"parquet": pq.write_table, "arrow": write_arrow}


# Schemas that differ.


@pytest.mark.parametrize("kind", WRITERS)
def test_files_that_differ_have_the_columns_of_all_in_types_that_hold_all(tmp_path: Path, kind: str) -> None:
    write = WRITERS[kind]
    write(pa.table({"id": pa.array([1], pa.int32()), "a": ["x"]}), tmp_path / f"1.{kind}")
    write(pa.table({"b": [0.5], "id": pa.array([1 << 40], pa.int64())}), tmp_path / f"2.{kind}")
    merged = read(tmp_path)
    assert merged.schema == pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.float64())])
    assert merged.to_pylist() == [{"id": 1, "a": "x", "b": None}, {"id": 1 << 40, "a": None, "b": 0.5}]
    first, rejected = rows_of(tmp_path, schema=SchemaMode.FIRST)
    assert first.to_pylist() == [{"id": 1, "a": "x"}] and "id: Integer value 1099511627776 not in range" in rejected[0]
    with pytest.raises(
        RefusedError, match=rf"id' is int64 in {tmp_path}/2.{kind} and int32 in {tmp_path}/1.{kind}, and"
    ):
        read(tmp_path, schema=SchemaMode.STRICT)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"a": pa.int64()}, {"a": pa.string()}, "Column 'a' is string in {2} and int64 in {1}: no type holds"),
        ({"a": pa.uint64()}, {"a": pa.int8()}, "Column 'a' is int8 in {2} and uint64 in {1}"),
        ({"a": pa.timestamp("us")}, {"a": pa.timestamp("us", "UTC")}, r"Column 'a' is timestamp\[us, tz=UTC\] in {2}"),
        ({"a": pa.struct({"x": pa.bool_()})}, {"a": pa.struct({"x": pa.date32()})}, "Column 'a' is struct"),
        ({"id": pa.int64()}, {"ID": pa.int64()}, "{2} has a column 'ID' where {1} has 'id'"),
    ],
)
def test_difference_that_nothing_bridges_names_file_and_column(
    tmp_path: Path, first: dict[str, pa.DataType], second: dict[str, pa.DataType], message: str
) -> None:
    names = {number: tmp_path / f"{number}.parquet" for number in (1, 2)}
    for number, fields in ((1, first), (2, second)):
        pq.write_table(pa.table({name: pa.nulls(1, dtype) for name, dtype in fields.items()}), names[number])
    with pytest.raises(RefusedError, match=message.format(None, names[1], names[2])):
        read(tmp_path)


def test_column_that_is_cast_may_differ_and_one_that_is_not_selected_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "zip": [12345], "x": [True]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"id": [2], "zip": ["01234"], "x": ["?"]}), tmp_path / "2.parquet")
    rows = read(tmp_path, types={"zip": pa.string()}, columns=("id", "zip"))
    assert rows.to_pylist() == [{"id": 1, "zip": "12345"}, {"id": 2, "zip": "01234"}]


def test_common_type_holds_the_values_of_both() -> None:
    vector, lists = pa.list_(pa.float32(), 2), pa.list_(pa.float64())
    for left, right, common in [
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(4, 2), pa.int32(), pa.decimal128(12, 2)),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.timestamp("s"), pa.timestamp("s")),
        (pa.time32("s"), pa.time64("us"), pa.time64("us")),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
        (
            pa.dictionary(pa.int8(), pa.string()),
            pa.dictionary(pa.int32(), pa.string()),
            pa.dictionary(pa.int32(), pa.string()),
        ),
        (vector, lists, lists),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3), pa.list_(pa.float32())),
        (pa.null(), pa.bool_(), pa.bool_()),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), pa.map_(pa.string(), pa.int16())),
        (pa.bool_(), pa.int8(), None),
        (pa.string(), pa.binary(), None),
        (pa.decimal128(4, 2), pa.float64(), None),
    ]:
        assert common_type(left, right) == common and common_type(right, left) == common, (left, right)
    left, right = pa.struct({"x": pa.int8()}), pa.struct({"y": pa.int8()})
    assert common_type(left, right) == pa.struct({"x": pa.int8(), "y": pa.int8()})


def test_zone_that_a_table_would_drop_or_add_is_refused() -> None:
    zoned, naive = (pa.schema([("t", pa.timestamp("us", zone))]) for zone in ("Europe/Berlin", None))
    for source, table in ((zoned, naive), (naive, zoned)):
        with pytest.raises(RefusedError, match=r"Column 't' is timestamp.* --cast 't=timestamp"):
            check_time_zones(source, table)
    check_time_zones(zoned, pa.schema([("t", pa.timestamp("ns", "UTC"))]))
    check_time_zones(naive, pa.schema([("t", pa.string())]))


def test_name_that_a_file_has_twice_is_refused(tmp_path: Path) -> None:
    write_arrow(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "1.arrow")
    with pytest.raises(RefusedError, match=r"1.arrow has two columns called 'a'"):
        read(tmp_path)


def test_files_of_a_format_that_are_compressed_otherwise_are_refused_and_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a\n1\n")
    (tmp_path / "more.of.2.csv.gz").write_bytes(gzip.compress(b"a\n2\n"))
    (tmp_path / "README.md").write_text("a card")
    assert read(tmp_path)["a"].to_pylist() == [1, 2]
    (tmp_path / "3.csv.bz2").write_bytes(b"?")
    with pytest.raises(RefusedError, match=r"3.csv.bz2 is compressed as .bz2, which is not read"):
        read(tmp_path)


def test_lance_column_of_blobs_is_refused_and_others_are_read(tmp_path: Path) -> None:
    blob_field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    for name, blobs, field, version in (
        ("old", pa.array([b"bytes"], pa.large_binary()), blob_field, "2.1"),
        ("new", lance.blob_array([b"bytes"]), lance.blob_field("b"), "2.2"),
    ):
        table = pa.table([pa.array([1]), blobs], pa.schema([pa.field("id", pa.int64()), field]))
        dataset = lance.write_dataset(table, tmp_path / f"{name}.lance", data_storage_version=version)
        with pytest.raises(RefusedError, match="Column 'b' holds blobs"):
            read(tmp_path / f"{name}.lance")
        assert read(tmp_path / f"{name}.lance", columns=("id",)).to_pylist() == [{"id": 1}]
        with pytest.raises(RefusedError, match="Column 'b' holds blobs"):
            next(scan_fragments(dataset, [0]))


# Partition folders.


def put(folder: Path, *parts: str, **columns: Any) -> Path:
    file = folder.joinpath(*parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": [1]} | columns), file)
    return file


def test_hive_folders_are_columns_of_types_that_lose_nothing(tmp_path: Path) -> None:
    put(tmp_path, "year=2013", "day=2013-01-31", "zip=01234", "who=a%2Fb%20%C3%BC", "1.parquet")
    put(tmp_path, "year=2014", "day=2013-02-01", "zip=12345", "who=__HIVE_DEFAULT_PARTITION__", "1.parquet")
    rows = read(tmp_path)
    assert rows.to_pylist() == [
        {"x": 1, "year": 2013, "day": dt.date(2013, 1, 31), "zip": "01234", "who": "a/b ü"},
        {"x": 1, "year": 2014, "day": dt.date(2013, 2, 1), "zip": "12345", "who": None},
    ]
    assert read(tmp_path, types={"zip": pa.int32()})["zip"].to_pylist() == [1234, 12345]
    assert read(tmp_path, partitions="off").column_names == ["x"]
    assert read(tmp_path / "year=2013")["year"].to_pylist() == [2013]
    assert read(f"{tmp_path}/year=*/*/*/who=a*/*.parquet")["year"].to_pylist() == [2013]
    assert read(next(tmp_path.glob("year=2014/*/*/*/*.parquet")))["zip"].to_pylist() == [12345]


def test_folders_whose_names_are_values_are_columns_where_they_are_named(tmp_path: Path) -> None:
    put(tmp_path, "2013", "01", "1.parquet")
    assert read(tmp_path).column_names == ["x"]
    assert read(tmp_path, partitions="year/month").to_pylist() == [{"x": 1, "year": 2013, "month": "01"}]
    with pytest.raises(RefusedError, match="lies in fewer folders than --partitions names columns: a/b/c"):
        read(tmp_path, partitions="a/b/c")


def test_hive_folders_of_csv_and_json_lines_are_columns_too(tmp_path: Path) -> None:
    for kind, text in (("csv", "x\n1\n"), ("jsonl", '{"x": 1}\n')):
        file = tmp_path / kind / "_day=7" / f"1.{kind}"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        assert read(tmp_path / kind).to_pylist() == [{"x": 1, "_day": 7}]


def test_folder_that_is_also_a_column_or_that_only_some_files_lie_in_is_refused(tmp_path: Path) -> None:
    file = put(tmp_path, "year=2013", "1.parquet", year=[2012])
    with pytest.raises(RefusedError, match=f"{file} has a column 'year', and lies in a folder"):
        read(tmp_path)
    assert read(tmp_path, partitions="off")["year"].to_pylist() == [2012]
    put(tmp_path, "year=2013", "1.parquet")
    other = put(tmp_path, "z", "1.parquet")
    with pytest.raises(RefusedError, match=f"{other} lies in folders of the partition columns none, and .* of 'year'"):
        read(tmp_path)


# CSV.


def csv(tmp_path: Path, text: str | bytes, name: str = "rows.csv") -> Path:
    file = tmp_path / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_csv_only_the_empty_unquoted_field_is_null(tmp_path: Path) -> None:
    file = csv(tmp_path, 'code,empty,n\nNA,,1\nN/A,"",\nnull,,2\nnan,,3\n"",,4\n,,NA\n')
    rows = read(file)
    assert rows["code"].to_pylist() == ["NA", "N/A", "null", "nan", "", None]
    assert rows["empty"].to_pylist() == [None, "", None, None, None, None]
    assert rows["n"].to_pylist() == ["1", None, "2", "3", "4", "NA"]
    more = read(file, null_value=["NA", "nan"])
    assert more["code"].to_pylist() == [None, "N/A", "null", None, "", None]
    assert more["n"].to_pylist() == [1, None, 2, 3, 4, None]


def test_csv_column_of_nulls_takes_a_quoted_empty_text_behind_the_head(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(discovery, "HEAD_BYTES", 64)
    file = csv(tmp_path, "a,b\n" + "1,\n" * 100 + '2,""\n')
    source = find_source(SourceOptions(str(file)))
    assert source.reader.schema.field("b").type == pa.string()
    assert read(file)["b"].to_pylist()[-2:] == [None, ""]


def test_csv_types_give_back_what_was_written(tmp_path: Path) -> None:
    for texts, expected in {
        ("1", "-7", "0"): [1, -7, 0],
        ("01234", "5"): ["01234", "5"],
        ("12345678901234567890", "5"): ["12345678901234567890", "5"],
        ("+5", "5"): ["+5", "5"],
        ("0x10", "5"): ["0x10", "5"],
        ("1E5", "2"): ["1E5", "2"],
        ("0.1", "-2.50", "1e-05", "nan"): [0.1, -2.5, 1e-05, "nan"],
        ("12345678901234567.89",): ["12345678901234567.89"],
        ("1e999",): ["1e999"],
        ("NaN", "Inf"): ["NaN", "Inf"],
        ("true", "False"): [True, False],
        ("2013-01-31",): [dt.date(2013, 1, 31)],
        ("01/02/2013",): ["01/02/2013"],
        ("2013-01-31 10:00:00",): [dt.datetime(2013, 1, 31, 10)],  # noqa: DTZ001  # a time without a zone
        ("2013-01-31T10:00:00Z",): [dt.datetime(2013, 1, 31, 10, tzinfo=dt.UTC)],
        ("2013-01-31T10:00:00+02:00",): [dt.datetime(2013, 1, 31, 8, tzinfo=dt.UTC)],
        ("2013-01-31T10:00:00+02:00", "2013-01-31T10:00:00+01:00"): [
            "2013-01-31T10:00:00+02:00",
            "2013-01-31T10:00:00+01:00",
        ],
        ("10:30:00",): [dt.time(10, 30)],
        ("10:30",): ["10:30"],
    }.items():
        column = read(csv(tmp_path, "a,b\n" + "".join(f"{text},\n" for text in texts)))["a"].to_pylist()
        assert ["nan" if isinstance(value, float) and math.isnan(value) else value for value in column] == expected, (
            texts
        )
    zone = read(csv(tmp_path, "a\n2013-01-31T10:00:00+02:00\n")).schema.field("a").type
    assert zone == pa.timestamp("us", "+02:00")


def test_csv_guess_that_does_not_hold_later_says_where_and_what_to_do(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(discovery, "HEAD_BYTES", 64)
    for early, late in [
        ("12345", "01234"),
        ("5", "+5"),
        ("5", "0x10"),
        ("5", "12345678901234567890"),
        ("0.5", "12345678901234567.89"),
        ("0.5", "007.5"),
        ("0.5", "1e999"),
        ("2013-01-31T10:00:00Z", "2013-01-31T10:00:00+02:00"),
        ("2013-01-31 10:00:00", "2013-01-31T10:00:00Z"),
        ("5", "NA"),
    ]:
        file = csv(tmp_path, "a,b\n" + f"{early},1\n" * 100 + f"{late},2\n{early},3\n")
        rows, rejected = rows_of(file)
        assert rows["b"].to_pylist()[-2:] == [1, 3], late
        assert len(rejected) == 1 and rejected[0].startswith("line 102: column 'a': "), rejected
        assert late in rejected[0] or "zone" in rejected[0], rejected


def test_types_are_inferred_from_within_large_files_too(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(discovery, "HEAD_BYTES", 64)
    monkeypatch.setattr(inspection, "RANGE_BYTES", 300)
    numbers = [str(n) for n in range(100, 200)] + ["01234"] * 100
    assert read(csv(tmp_path, "a,b\n" + "".join(f"{n},\n" for n in numbers)))["a"].to_pylist() == numbers
    rows = read(jsonl(tmp_path, *['{"a": 1}'] * 50, *['{"a": 0.5, "b": "x"}'] * 50))
    assert rows["a"].to_pylist() == [1.0] * 50 + [0.5] * 50 and rows["b"].to_pylist() == [None] * 50 + ["x"] * 50


def test_first_line_that_is_longer_than_the_head_is_read_whole(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(discovery, "HEAD_BYTES", 64)
    names = [f"column{n}" for n in range(200)]
    assert read(csv(tmp_path, ",".join(names) + "\n" + ",".join("1" for _ in names))).column_names == names
    assert read(jsonl(tmp_path, json.dumps({"a": "x" * 999})))["a"].to_pylist() == ["x" * 999]


def test_csv_guesses_are_told_as_options_that_name_other_types(tmp_path: Path) -> None:
    file = csv(tmp_path, "id,zip,x\n1,01234,0.5\n")
    reading = find_source(SourceOptions(str(file), types={"x": pa.string()})).reader
    assert inferred_casts(reading) == "--cast 'id=int64' --cast 'zip=string'"
    values = ["1", "0.5", "true", '"x"', '"2013-01-31"', '"2013-01-31T10:00:00+02:00"', '[{"a": [0.5], "b": "x"}]']
    fields = ", ".join(f'"c{at}": {value}' for at, value in enumerate(values))
    schema = find_source(SourceOptions(str(jsonl(tmp_path, f"{{{fields}}}")))).reader.schema
    assert [parse_type(format_type(dtype)) for dtype in schema.types] == schema.types


def test_csv_rows_for_a_table_have_its_types_as_they_are_written(tmp_path: Path) -> None:
    table = pa.schema(
        [("id", pa.int32()), ("version", pa.string()), ("price", pa.decimal128(20, 2)), ("r", pa.float32())]
    )
    rows, rejected = rows_of(csv(tmp_path, "id,version,price,r\n1,1.10,12345678901234567.89,0.1\n"), table)
    assert not rejected and rows.schema == table
    assert rows.to_pylist()[0] | {"r": 0} == {
        "id": 1,
        "version": "1.10",
        "price": Decimal("12345678901234567.89"),
        "r": 0,
    }
    line = '{"id": 7, "version": 1.10, "price": 12345678901234567.89, "r": 0.1}\n'
    rows, rejected = rows_of(csv(tmp_path, line, "rows.jsonl"), table)
    assert not rejected and rows.to_pylist()[0]["version"] == "1.10"
    assert rows["price"].to_pylist() == [Decimal("12345678901234567.89")]


def test_csv_header_that_is_no_header_is_refused(tmp_path: Path) -> None:
    for text, message in {
        "a,b,a\n1,2,3\n": "line 1: the columns 1 and 3 are both called 'a'",
        "a,,b\n1,2,3\n": "line 1: column 2 has no name",
        b"\xff\xfea\x00": "is UTF-16: write it as UTF-8",
        "\n\n": "has no line with the names of its columns",
        b"a,\xfc\n1,2\n": "the names of its columns are not UTF-8",
    }.items():
        with pytest.raises(RefusedError, match=message):
            read(csv(tmp_path, text))


def test_csv_marks_line_ends_and_bytes_of_other_systems_are_no_part_of_values(tmp_path: Path) -> None:
    assert read(csv(tmp_path, b"\xef\xbb\xbfa,b\r\n1,x\r\n2,\r\n")).to_pylist() == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": None},
    ]
    assert read(csv(tmp_path, b"a,b\r1,x\r2,y\r")).to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert read(csv(tmp_path, b"a,b\n1,x\0y\n"))["b"].to_pylist() == ["x\0y"]
    assert read(csv(tmp_path, b"a\n1\n\n3\n"))["a"].to_pylist() == [1, None, 3]
    assert read(csv(tmp_path, b'"a\nb",c\n1,2\n')).column_names == ["a\nb", "c"]
    rows, rejected = rows_of(csv(tmp_path, b"a,b\n1,x\n2,M\xfcnchen\n"))
    assert rows.num_rows == 1 and rejected == ["line 3: column 'b': CSV conversion error to string: invalid UTF8 data"]


def test_csv_columns_go_by_their_names_in_each_file(tmp_path: Path) -> None:
    csv(tmp_path, "a,b\n1,x\n", "1.csv")
    csv(tmp_path, "b\ta\tc\ny\t2\t0.5\n", "2.tsv")
    assert read(tmp_path).to_pylist() == [{"a": 1, "b": "x", "c": None}, {"a": 2, "b": "y", "c": 0.5}]
    csv(tmp_path, "a,b\nz,x\n", "3.csv")
    assert read(tmp_path)["a"].to_pylist() == ["1", "2", "z"]
    with pytest.raises(RefusedError, match=r"2.tsv has a column 'c', which .*1.csv lacks, and --schema is strict"):
        read(tmp_path, schema=SchemaMode.STRICT)
    assert read(tmp_path, schema=SchemaMode.FIRST).column_names == ["a", "b"]


def test_csv_rejected_row_is_named_by_the_line_of_its_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(inspection, "RANGE_BYTES", 300)
    text = "id,text\n" + "".join(f'{n},"two\nlines"\n' if n < 3 else f"{n},row {n}\n" for n in range(200))
    lines = text.split("\n")
    broken = {
        at: line.replace(",", ";") for at, line in enumerate(lines) if line in ("4,row 4", "100,row 100", "199,row 199")
    }
    file = csv(tmp_path, "\n".join(broken.get(at, line) for at, line in enumerate(lines)))
    assert len(find_source(SourceOptions(str(file))).pieces) > 5
    rows, rejected = rows_of(file, types={"id": pa.int64()})
    assert [int(reason.partition(":")[0].removeprefix("line ")) - 1 for reason in rejected] == list(broken)
    assert rows["text"].to_pylist()[:3] == ["two\nlines"] * 3 and rows.num_rows == 197


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_rejected_row_in_a_piece_of_several_blocks_leaves_the_others_as_they_are(
    tmp_path: Path, monkeypatch: Any, kind: str
) -> None:
    monkeypatch.setattr(inspection, "RANGE_BYTES", 1000)
    read_blocks = text_blocks.read_line_blocks
    monkeypatch.setattr(
        text_blocks, "read_line_blocks", lambda file, start, end, size=64: read_blocks(file, start, end, size)
    )
    lines = [f"{n},row" if kind == "csv" else f'{{"id": {n}, "text": "row"}}' for n in range(400)]
    lines[300] = "broken"
    file = tmp_path / f"rows.{kind}"
    file.write_text("\n".join((["id,text"] if kind == "csv" else []) + lines) + "\n")
    rows, rejected = rows_of(file, types={"id": pa.int64()})
    assert rows["id"].to_pylist() == [n for n in range(400) if n != 300]
    [reason] = rejected
    assert reason.startswith(f"line {302 if kind == 'csv' else 301}: ")


def test_csv_value_over_several_lines_is_never_cut(tmp_path: Path, monkeypatch: Any) -> None:
    text = "id,text\n" + "".join(f'{n},"1,x\n2,y\n{"z" * 50}"\n' for n in range(20))
    file = csv(tmp_path, text)
    whole = read(file)
    assert whole["text"].to_pylist() == [f"1,x\n2,y\n{'z' * 50}"] * 20
    monkeypatch.setattr(inspection, "RANGE_BYTES", 100)
    assert len(find_source(SourceOptions(str(file))).pieces) > 10
    assert read(file) == read(file, multiline=True) == whole
    text = text.replace("id", '\ufeff"a\nb"', 1)  # the header has one, behind a byte order mark
    assert read(csv(tmp_path, text)).rename_columns(["id", "text"]) == whole
    rows, rejected = rows_of(csv(tmp_path, 'id,text\n1,x\n2,"y\n3,z\n'))
    assert rows.num_rows == 1 and rejected == [
        "line 3: a quote is opened and not closed, or an escape is the end of the text"
    ]


def test_csv_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(inspection, "RANGE_BYTES", 40)
    file = csv(tmp_path, "id,text\n" + "".join(f"{n},abc\n" for n in range(20)))
    source = find_source(SourceOptions(str(file)))
    csv(tmp_path, file.read_text().replace("1,abc", '1,"bc', 1).replace("19,abc", '19,ab"'))
    with pytest.raises(RefusedError, match=r"line \d+: a value goes on behind byte \d+, where a record began when"):
        [row for piece in source.pieces for row in source.reader.read(piece)]


@pytest.mark.parametrize("dialect", [CsvDialect(), CsvDialect(escape="\\")], ids=["plain", "escape"])
def test_csv_is_cut_only_where_a_record_begins(tmp_path: Path, dialect: CsvDialect) -> None:
    random = Random(7)
    parts = ["a", ",", '"', "\n", '""', ',"', '"\n', *(["\\", "\\\n"] if dialect.escape else [])]
    for _ in range(300):
        text = "".join(random.choices(parts, k=random.randint(1, 60))).encode()
        ends, is_open = split_records(text, dialect)
        path, part = tmp_path / "text.csv", random.randint(1, 12)
        path.write_bytes(text)
        ranges = [(start, min(start + part, len(text))) for start in range(0, len(text), part)]
        pieces = [Piece(str(path), end - start, "1", (start, end), dialect=dialect) for start, end in ranges]
        scans = ScanTask(tuple(pieces), {})()
        cuts = [piece.part for piece in cut_at_records(pieces, scans)]
        assert {start for start, _ in cuts} <= {0, *ends.tolist()}, (text, part)
        assert b"".join(text[start:end] for start, end in cuts) == text
        expected = {start for start, _ in ranges if start in ends} & {*ends.tolist()}
        assert expected - {len(text)} <= {start for start, _ in cuts}, (text, part)  # each cut that can stay does
        state = TextState.RECORD
        for scan in scans:
            state = scan.ends[state]
        assert (state is TextState.QUOTED) == is_open, (text, part)


@pytest.mark.parametrize("quoting", [csv_module.QUOTE_NONE, csv_module.QUOTE_MINIMAL, csv_module.QUOTE_ALL])
def test_csv_with_an_escape_is_what_was_written_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quoting: Literal[0, 1, 3]
) -> None:
    random, file = Random(quoting), tmp_path / "text.csv"
    texts = ["".join(random.choices('ab ,"\\\n', k=random.randint(1, 12))) for _ in range(400)]
    with file.open("w", newline="") as out:
        writer = csv_module.writer(out, escapechar="\\", doublequote=False, quoting=quoting, lineterminator="\n")
        writer.writerow(["te,xt", "n"])
        writer.writerows((text, number) for number, text in enumerate(texts))
    for size in (37, 100, 1 << 20):
        monkeypatch.setattr(inspection, "RANGE_BYTES", size)
        assert read(file, escape="\\")["te,xt"].to_pylist() == texts, size
    assert len(find_source(SourceOptions(str(file), {"escape": "\\"})).pieces) == 1
    rows, rejected = rows_of(csv(tmp_path, "a\nx\\,y\nz\\"), escape="\\")
    assert rows["a"].to_pylist() == ["x,y"] and len(rejected) == 1 and rejected[0].startswith("line 3: ")


def test_split_records_with_quotes_anywhere_finds_the_ends_of_records() -> None:
    for text, ends, is_open in [
        (b"a,b\nc,d\n", [4, 8], False),
        (b'a,"b\nc"\nd\n', [8, 10], False),
        (b'"a""\n",b\nc\n', [9, 11], False),
        (b'5" pipe,x\n6" pipe,"a\nb"\ny\n', [10, 24, 26], False),
        (b'a,"b\nc\n', [], True),
        (b'5" x\n"y\n', [5], True),
    ]:
        offsets, opened = split_records(text, CsvDialect())
        assert (offsets.tolist(), opened) == (ends, is_open), text


# JSON lines.


def jsonl(tmp_path: Path, *rows: str | bytes) -> Path:
    return csv(
        tmp_path, b"".join((row if isinstance(row, bytes) else row.encode()) + b"\n" for row in rows), "rows.jsonl"
    )


def test_json_types_give_back_what_was_written(tmp_path: Path) -> None:
    for value, expected in {
        "12345678901234567890": "12345678901234567890",
        "-1.50": -1.5,
        "1e999": "1e999",
        "12345678901234567.89": "12345678901234567.89",
        '"2013-01-31T10:00:00Z"': dt.datetime(2013, 1, 31, 10, tzinfo=dt.UTC),
        '"2013-01-31 10:00:00"': dt.datetime(2013, 1, 31, 10),  # noqa: DTZ001  # a time without a zone
        '"01234"': "01234",
        '"10"': "10",
        "[1, 2]": [1, 2],
        '{"x": [12345678901234567890], "t": "2013-01-31T10:00:00Z"}': {
            "x": ["12345678901234567890"],
            "t": "2013-01-31T10:00:00Z",
        },
        "null": None,
    }.items():
        assert read(jsonl(tmp_path, f'{{"a": {value}, "b": 1}}'))["a"].to_pylist() == [expected], value
    zone = read(jsonl(tmp_path, '{"a": "2013-01-31T10:00:00+02:00"}')).schema.field("a").type
    assert zone == pa.timestamp("us", "+02:00")


def test_json_guess_that_does_not_hold_later_says_where_and_what_to_do(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(discovery, "HEAD_BYTES", 64)
    for early, late in [
        ("5", "12345678901234567890"),
        ("0.5", "12345678901234567890"),
        ("0.5", "0.12345678901234567890"),
        ("0.5", "1e999"),
        ("[0.5]", "[12345678901234567890]"),
        ('"2013-01-31T10:00:00Z"', '"2013-01-31T10:00:00+02:00"'),
        ('"2013-01-31 10:00:00"', '"2013-01-31T10:00:00Z"'),
        ("null", "5"),
        ('"x"', '{"y": 1}'),
    ]:
        lines = [f'{{"a": {early}, "b": 1}}'] * 50 + [f'{{"a": {late}, "b": 2}}', f'{{"a": {early}, "b": 3}}']
        rows, rejected = rows_of(jsonl(tmp_path, *lines))
        assert rows["b"].to_pylist()[-2:] == [1, 3], late
        assert len(rejected) == 1 and rejected[0].startswith("line 51: "), rejected


def test_json_numbers_are_what_a_cast_says(tmp_path: Path) -> None:
    file = jsonl(tmp_path, '{"a": 12345678901234567890, "b": 1.10, "t": 5}')
    for dtype, expected in {
        pa.uint64(): 12345678901234567890,
        pa.decimal128(38, 0): Decimal(12345678901234567890),
        pa.string(): "12345678901234567890",
    }.items():
        assert read(file, types={"a": dtype})["a"].to_pylist() == [expected]
    assert read(file, types={"b": pa.string()})["b"].to_pylist() == ["1.10"]


def test_json_bytes_that_are_no_text_are_rejected_and_a_mark_is_none(tmp_path: Path) -> None:
    rows, rejected = rows_of(jsonl(tmp_path, b'\xef\xbb\xbf{"a": "x"}', b'{"a": "M\xfcnchen"}', '{"a": "ü"}'))
    assert rows["a"].to_pylist() == ["x", "ü"] and rejected[0].startswith("line 2: the line is not UTF-8")
    rows, rejected = rows_of(jsonl(tmp_path, '{"a": "x"}', '{"a": "y", "a": "z"}'))
    assert rows.num_rows == 1 and "line 2: " in rejected[0] and "twice" in rejected[0]


def test_json_lines_of_two_objects_and_objects_of_two_lines_are_rejected(tmp_path: Path) -> None:
    for bad in (['{"a": 1}{"a": 2}'], ['{"a": 1} {}', ""], ['{"a": 1}null'], ['{"a":', "1}"]):
        rows, rejected = rows_of(jsonl(tmp_path, '{"a": 5}', *bad, '{"a": 6}'))
        assert rows["a"].to_pylist() == [5, 6] and len(rejected) == len([line for line in bad if line]), bad


def test_json_lines_that_are_no_objects_or_no_text_are_rejected(tmp_path: Path) -> None:
    lines = [r'{"a": "\ud800"}', "null", '{"a": "x"}', " null", "5", r'{"\udfff": 1}', r'{"a": "\ud83d\ude00"}', "null"]
    rows, rejected = rows_of(jsonl(tmp_path, *lines))
    assert rows.to_pylist() == [{"a": "x"}, {"a": "\N{GRINNING FACE}"}]
    assert [reason.partition(":")[0] for reason in rejected] == [
        "line 1",
        "line 2",
        "line 4",
        "line 5",
        "line 6",
        "line 8",
    ]


def test_json_number_that_would_be_infinite_is_rejected_beside_one_that_is(tmp_path: Path) -> None:
    file = jsonl(tmp_path, '{"a": 1.5}', '{"a": 1e300}', '{"a": Infinity}')
    rows, rejected = rows_of(file, types={"a": pa.float32()})
    assert rows["a"].to_pylist() == [1.5, float("inf")]
    assert len(rejected) == 1 and rejected[0].startswith("line 2: column 'a': a number is beyond what float")


def test_json_fields_of_all_files_are_columns(tmp_path: Path) -> None:
    csv(tmp_path, '{"a": 1}\n', "1.jsonl")
    csv(tmp_path, '{"a": 2.5, "b": "x"}\n', "2.jsonl")
    assert read(tmp_path).to_pylist() == [{"a": 1.0, "b": None}, {"a": 2.5, "b": "x"}]
    assert read(tmp_path, schema=SchemaMode.FIRST, types={"a": pa.float64()}).to_pylist() == [{"a": 1.0}, {"a": 2.5}]
    with pytest.raises(
        RefusedError, match=r"Column 'a' is double in .*2.jsonl and int64 in .*1.jsonl, and --schema is"
    ):
        read(tmp_path, schema=SchemaMode.STRICT)


def test_pipeline_file_takes_the_options_of_sources_for_files_alone() -> None:
    options = {"schema": "strict", "partitions": "year/month", "null_value": ["NA"], "multiline": True, "escape": "!"}
    table = parse_plan({"tables": {"a": {"files": "flights", **options}}}).tables["a"]
    assert {name: table.options[name] for name in given_options(table.options)} == options
    for name, value in options.items():
        with pytest.raises(ContentError, match=f"tables.a: '{name}' is of files, not of SQL"):
            parse_plan({"tables": {"a": {"sql": "SELECT 1", name: value}}})


def test_many_files_are_inspected_in_tasks_with_the_same_result(tmp_path: Path) -> None:
    for number in range(150):
        csv(tmp_path, json.dumps({"a": number, f"b{number % 3}": 1}) + "\n", f"{number:03}.jsonl")
    parts: list[int] = []

    def inspect(task: inspection.InspectionTask) -> list[inspection.InspectedFile]:
        tasks = task.split(64)
        parts.extend(len(part.files) for part in tasks)
        return [file for part in tasks for file in part()]

    options = SourceOptions(str(tmp_path))
    assert find_source(options, inspect) == find_source(options) and parts == [64, 64, 21]
    assert find_source(options).reader.format is Format.JSON and discovery.MAX_FILES_IN_DRIVER > 150
