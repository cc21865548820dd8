"""What commands print."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet
import pytest

from tiltyard.calls.flight_sql import encode_query, sql_address
from tiltyard.cli.browsing.diff import RowDifference, compare_schemas
from tiltyard.cli.output.cells import format_cell, format_size, pad_text, printable
from tiltyard.cli.output.formats import OutputFormat, _fit_columns, write_rows

EVERYTHING = pa.table(
    {
        "n": pa.array([1, None], pa.int32()),
        "x": [1.5, float("nan")],
        "text": ['a "quoted", text', "line\nbreak"],
        "bytes": [b"\x00\xff", b""],
        "day": [date(2026, 1, 31), None],
        "at": [datetime(2026, 1, 31, 12, 30, tzinfo=UTC), None],
        "nanos": pa.array([1, None], pa.timestamp("ns")),
        "money": [Decimal("1.10"), None],
        "list": [[1, 2], []],
        "struct": [{"a": 1, "b": None}, None],
        "vector": pa.array([[0.5, 1.5], None], pa.list_(pa.float32(), 2)),
    }
)


def write(form: OutputFormat) -> bytes:
    file = io.BytesIO()
    assert write_rows(EVERYTHING.to_reader(), form, file) == 2
    return file.getvalue()


def test_json_lines_have_every_type() -> None:
    first, second = (json.loads(line) for line in write(OutputFormat.JSONL).splitlines())
    assert first == {
        "n": 1,
        "x": 1.5,
        "text": 'a "quoted", text',
        "bytes": "AP8=",
        "day": "2026-01-31",
        "at": "2026-01-31T12:30:00Z",
        "nanos": "1970-01-01 00:00:00.000000001",
        "money": "1.10",
        "list": [1, 2],
        "struct": {"a": 1, "b": None},
        "vector": [0.5, 1.5],
    }
    assert second["x"] is None and second["list"] == [] and second["struct"] is None


def test_csv_has_nested_values_as_json_and_bytes_as_base64() -> None:
    header, first, second = csv.reader(io.StringIO(write(OutputFormat.CSV).decode(), newline=""))
    row = dict(zip(header, first, strict=True))
    assert row["text"] == 'a "quoted", text' and row["bytes"] == "AP8=" and row["n"] == "1"
    assert json.loads(row["list"]) == [1, 2] and json.loads(row["struct"]) == {"a": 1, "b": None}
    assert dict(zip(header, second, strict=True))["text"] == "line\nbreak"


def test_arrow_and_parquet_have_the_same_rows() -> None:
    assert pa.ipc.open_stream(write(OutputFormat.ARROW)).read_all().schema == EVERYTHING.schema
    assert pyarrow.parquet.read_table(pa.BufferReader(write(OutputFormat.PARQUET))).num_rows == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ([], ""),
        (b"abc", "<3 B>"),
        ([0.123456789, 2.0, 3.0, 4.0], "[0.123457, 2, 3, … 4]"),
        ({"a": [1], "b": "x"}, "{a: [1], b: x}"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\tb", "a\\tb"),
        ("é 東京", "é 東京"),
        ("x" * 100, "x" * 59 + "…"),
    ],
)
def test_cells_are_short_and_harmless(value: object, text: str) -> None:
    assert format_cell(value, 60) == text


def test_printable_replaces_changes_of_direction() -> None:
    assert printable("a\u202eb\u2066") == "a\\u202eb\\u2066"
    assert printable("plain") == "plain"


def test_sizes_have_units() -> None:
    assert [format_size(number) for number in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]


def test_difference_of_rows_counts_repeated_ones_and_forgets_those_that_are_alike() -> None:
    old, new = pa.table({"n": [1, 1, 2, 3]}), pa.table({"n": [3, 1, 2, 2]})
    difference = RowDifference(())
    difference.compare(old.to_reader(max_chunksize=1), new.to_reader(max_chunksize=1))
    assert sorted((row["change"], row["n"]) for row in difference.changes()) == [("+", 2), ("-", 1)]
    assert difference.describe() == "1 rows added, 1 removed."
    assert len(difference._unmatched) == 2


def test_difference_of_schemas_names_new_lost_and_changed_columns() -> None:
    old = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int8())])
    new = pa.schema([("a", pa.int64()), ("b", pa.string()), ("d", pa.int8())])
    assert [(row["change"], row["column"]) for row in compare_schemas(old, new)] == [("~", "a"), ("-", "c"), ("+", "d")]


def test_query_of_flight_sql_is_encoded_as_protobuf_does() -> None:
    from google.protobuf.any_pb2 import Any

    from tiltyard.flight.messages import MESSAGES

    for query in ("SELECT 1", "SELECT '" + "x" * 20_000 + "'"):
        message = Any.FromString(encode_query(query))
        assert message.type_url.endswith("CommandStatementQuery")
        assert MESSAGES["CommandStatementQuery"].FromString(message.value).query == query


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("http://127.0.0.1:2333", "grpc+tcp://127.0.0.1:2334"),
        ("https://lake.example.org", "grpc+tls://lake.example.org:444"),
        ("http://[::1]:80", "grpc+tcp://[::1]:81"),
    ],
)
def test_sql_is_served_on_the_next_port(server: str, address: str) -> None:
    assert sql_address(server) == address


def test_columns_are_narrowed_from_the_widest_on_until_they_fit() -> None:
    columns, row = ("a", "b", "c"), ["x" * 10, "x" * 100, "x" * 40]
    assert _fit_columns(columns, [row], 200) == [10, 100, 40]
    assert _fit_columns(columns, [row], 100) == [10, 46, 40]
    assert _fit_columns(columns, [row], 46) == [10, 16, 16]
    assert _fit_columns(columns, [row], 45) == [10, 33]
    assert _fit_columns(columns, [row], 5) == [5]
    assert _fit_columns((), [["field", "value"]], 80) == []


def test_texts_are_padded_by_the_columns_that_they_take() -> None:
    texts = ("日本", "e\u0301", "ab")
    assert [pad_text(text, 6, is_number=False) for text in texts] == ["日本  ", "e\u0301     ", "ab    "]
    assert pad_text("12", 4, is_number=True) == "  12"
