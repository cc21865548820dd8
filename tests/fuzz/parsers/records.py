"""Records of files: CSV, lines of JSON, texts as values of a type, names of folders."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator

import pyarrow as pa

from tests.fuzz.parsers.target import split_input, target, text_of
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.type_names import format_type, parse_type
from tiltyard.pipeline.sources.csv_records import (
    CsvDialect,
    infer_csv_schema,
    make_csv_parser,
    parse_records,
    read_header,
    read_record_blocks,
)
from tiltyard.pipeline.sources.json_lines import infer_json_schema, make_json_parser, parse_json_lines, profile_json
from tiltyard.pipeline.sources.partitions import read_partitions
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.sources.text_types import infer_type, parse_text

DIALECTS = (CsvDialect(), CsvDialect("\t"), CsvDialect(";", ("NA",)), CsvDialect(",", (), "\\"))


def _chunks(data: bytes, size: int) -> Iterator[bytes]:
    yield from (data[at : at + size] for at in range(0, len(data), size))


@target(RefusedError, words='" "" "," \n \r\n , ; \t \\" a,b NA', also="pipeline.sources.text_types")
def csv_records(data: bytes) -> None:
    """Records are the same in whatever chunks they come, none is lost, and values are those of Python's reader."""
    dialect, body = DIALECTS[data[0] % len(DIALECTS) if data else 0], data[1:]
    blocks = [list(read_record_blocks(_chunks(body, size), dialect)) for size in (max(1, len(body)), 7)]
    for found in blocks:
        assert b"".join(block.data for block in found) == body
    whole, parted = [_cuts(found) for found in blocks]
    if b"\r" not in body:  # where \r ends lines is decided by each block
        assert whole == parted, (whole, parted)
    names, begin = read_header(body, dialect, "a.csv")
    rows = body[begin:]
    infer_csv_schema(rows, names, dialect)
    parser = make_csv_parser(names, pa.schema([(name, pa.string()) for name in names]), dialect)
    found = [part for block in read_record_blocks([rows], dialect) for part in parse_records(block, parser)]
    if dialect.escape or any(isinstance(part, RejectedRow) for part in found) or b"\r" in body or b"\0" in body:
        return
    expected = _read_by_python(rows, dialect, len(names))
    if expected is not None:
        values = [list(row.values()) for part in found for row in part.to_pylist()]
        values = [[value or "" for value in row] for row in values]
        nulls = {*dialect.nulls, ""}
        assert values == [["" if value in nulls else value for value in row] for row in expected], (values, expected)


def _cuts(blocks: list[object]) -> list[int]:
    cuts, start = [], 0
    for block in blocks:
        cuts += [start + int(end) for end in block.ends]
        start += len(block.data)
    return cuts


def _read_by_python(rows: bytes, dialect: CsvDialect, columns: int) -> list[list[str]] | None:
    """Return the values that Python's strict reader finds; None where it refuses, or quotes leave it open."""
    try:
        text = rows.decode()
        read = list(csv.reader(io.StringIO(text, newline=""), delimiter=dialect.delimiter, strict=True))
    except (csv.Error, UnicodeDecodeError):
        return None
    if any(len(row) not in (0, columns) for row in read) or any(null in text for null in dialect.nulls):
        return None
    return [row for row in read if row or columns == 1] if columns > 1 else None


@target(
    words='{ } [ ] " : , null true false 1 1.5 -0 1e5 123456789012345678 \\u00e9 \\ud800 \n {"a": 2020-01-01',
    also="pipeline.sources.text_types",
)
def json_lines(data: bytes) -> None:
    """Each line is one row or one rejected row, and a row has what Python reads in its line."""
    profile = profile_json(data, complete=True)
    schema = infer_json_schema(profile)
    if not len(schema) or b"\r" in data or b"\xef\xbb\xbf" in data:
        return
    schema = pa.schema(
        [field if not pa.types.is_null(field.type) else field.with_type(pa.string()) for field in schema]
    )
    as_text = [name for name, field in profile.fields.items() if field.is_number_as_text()]
    lines = [line for line in data.split(b"\n") if line.strip()]
    block = b"".join(line + b"\n" for line in lines)
    parser = make_json_parser(schema, schema.names, as_text)
    rows: list[object] = []
    for part in parse_json_lines(block, parser, 1):
        rows += [part] if isinstance(part, RejectedRow) else part.to_pylist()
    if b"\x0b" in block or b"\x0c" in block or any(sep in block for sep in (b"\x1c", b"\x1d", b"\x1e", b"\x85")):
        return  # what else ends lines for Python
    assert len(rows) == len(lines), (rows, lines)
    for row, line in zip(rows, lines, strict=True):
        if isinstance(row, dict):
            expected = json.loads(line)
            assert {name for name, value in row.items() if value is not None} <= expected.keys(), (row, expected)
            for name, value in expected.items():
                kind = schema.field(name).type
                if (isinstance(value, bool | str) and (pa.types.is_string(kind) or pa.types.is_boolean(kind))) or (
                    type(value) is int and pa.types.is_integer(kind)
                ):
                    assert row[name] == value, (row, expected)
                elif isinstance(value, float) and pa.types.is_floating(kind):
                    assert row[name] == value or (math.isnan(value) and math.isnan(row[name])), (row, expected)


@target(
    pa.ArrowInvalid,
    words="2020-01-31 T 12:34:56 .123456789 Z +02:00 1e5 -0 007 nan Infinity true 9223372036854775807 0.1 \n",
)
def text_types(data: bytes) -> None:
    """Values of an inferred type give back the texts as written."""
    texts = pa.array([line.decode() for line in data.replace(b"\0", b"").splitlines() if _is_text(line)], pa.string())
    infer_type(texts, clocks=True)  # times of day are parsed by Arrow's reader of CSV
    dtype = infer_type(texts)
    if not len(texts):
        assert pa.types.is_null(dtype)
        return
    parsed = parse_text(texts, dtype, exact=True)
    assert len(parsed) == len(texts) and parsed.null_count == 0
    if pa.types.is_integer(dtype):
        assert [str(value) for value in parsed.to_pylist()] == [text.strip() for text in texts.to_pylist()]
    elif pa.types.is_floating(dtype):
        assert all(
            value == float(text) or math.isnan(value)
            for value, text in zip(parsed.to_pylist(), texts.to_pylist(), strict=True)
        )
    elif pa.types.is_date(dtype):
        assert [str(value) for value in parsed.to_pylist()] == texts.to_pylist()


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@target(RefusedError, words="hive off / = year=2013 %2F __HIVE_DEFAULT_PARTITION__ year/month")
def folder_partitions(data: bytes) -> None:
    """Each file has one value of each column that the names of its folders are."""
    layout, *paths = map(text_of, split_input(data, 4))
    files = [f"/lake/{path}/f.csv" for path in paths]
    partitions = read_partitions(layout or "hive", "/lake", files)
    assert len(partitions.values) == len(files)
    assert all(len(row) == len(partitions.names) for row in partitions.values)


@target(
    RefusedError,
    words=(
        "list< struct< map< decimal( timestamp[us, tz=UTC] float32[3] fixed_size_binary( "
        "dictionary<values= vector( : , > ) large_list<item: int64 blob"
    ),
)
def type_name(data: bytes) -> None:
    """The name of a type that was read by its name is one of the same type."""
    dtype = parse_type(text_of(data))
    named = format_type(dtype)
    assert parse_type(named) == dtype or str(dtype) == named or pa.types.is_nested(dtype), (dtype, named)
