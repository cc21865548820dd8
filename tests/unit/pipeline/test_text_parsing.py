"""Text is read in blocks of whole lines, from any offset of a file; only invalid lines are rejected."""

from __future__ import annotations

import io
import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.model.schemas.type_names import parse_type
from tiltyard.pipeline.sources.csv_records import CsvDialect, make_csv_parser, parse_records, read_record_blocks
from tiltyard.pipeline.sources.discovery import group_pieces
from tiltyard.pipeline.sources.json_lines import infer_json_schema, make_json_parser, parse_json_lines, profile_json
from tiltyard.pipeline.sources.readers import Piece
from tiltyard.pipeline.sources.text_blocks import RejectedRow, read_line_blocks


@given(
    st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    st.booleans(),
    st.lists(st.integers(0, 120), max_size=5),
    st.integers(1, 7),
)
def test_blocks_of_any_ranges_are_each_line_once(lines: list[bytes], ended: bool, cuts: list[int], size: int) -> None:
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    edges = [*sorted({0, *(cut for cut in cuts if cut < len(text))}), len(text)]
    ranges = itertools.pairwise(edges)
    read = [block for a, b in ranges for block in read_line_blocks(io.BytesIO(text), a, b, size)]
    assert b"".join(read) == text
    assert all(block.endswith(b"\n") for block in read[:-1])


def test_parse_invalid_lines_are_rejected_alone() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    [block] = read_record_blocks([b"1,x\nno,y\n3\n4,z\n"], CsvDialect())
    parsed = list(parse_records(block, make_csv_parser(schema.names, schema, CsvDialect())))
    assert [(part.row, part.line) for part in parsed if isinstance(part, RejectedRow)] == [("no,y", 2), ("3", 3)]
    assert [row for part in parsed if isinstance(part, pa.Table) for row in part.to_pylist()] == [
        {"a": 1, "b": "x"},
        {"a": 4, "b": "z"},
    ]


def test_json_lines_that_disagree_have_the_type_of_most() -> None:
    head = b'{"a": 1}\n{"a": 2, "b": 1}\n{"a": "x"}\nbroken\n{"a": 3, "b": 0.5}\n{"a": 4}\n'
    schema = infer_json_schema(profile_json(head, complete=True))
    assert schema == pa.schema([("a", pa.int64()), ("b", pa.float64())])
    rejected = [
        (row.row, row.line)
        for row in parse_json_lines(head, make_json_parser(schema), 1)
        if isinstance(row, RejectedRow)
    ]
    assert rejected == [('{"a": "x"}', 3), ("broken", 4)]


STRUCT = pa.struct(
    {"a": pa.int64(), "b": pa.list_(pa.struct({"c": pa.decimal128(10, 2), "d": pa.bool_()}))},
)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("float32[128]", pa.list_(pa.float32(), 128)),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("timestamp[us, UTC]", pa.timestamp("us", "UTC")),
        ("timestamp[ms]", pa.timestamp("ms")),
        ("list<float16[3]>", pa.list_(pa.list_(pa.float16(), 3))),
        ("large_string", pa.large_string()),
        ("list<item: double>", pa.list_(pa.float64())),
        ("struct<a: int64, b: list<struct<c: decimal(10, 2), d: bool>>>", STRUCT),
    ],
)
def test_parse_type_is_what_it_says(text: str, dtype: pa.DataType) -> None:
    assert parse_type(text) == dtype


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(1, 8), st.integers(1, 300))
def test_group_pieces_holds_each_piece_once_in_order(sizes: list[int], slots: int, most: int) -> None:
    pieces = [Piece(str(number), size, "") for number, size in enumerate(sizes)]
    tasks = group_pieces(pieces, slots, most)
    assert [piece for task in tasks for piece in task] == pieces
    assert all(tasks)
