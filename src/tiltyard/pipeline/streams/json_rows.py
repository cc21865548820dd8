"""Lines of JSON as rows, in the types of a table, or in types inferred from all of the lines."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.inspection import InspectedFile, adapt_to_table, json_reader
from tiltyard.pipeline.sources.json_lines import make_json_parser, parse_json_lines, profile_json
from tiltyard.pipeline.sources.readers import Format
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.sources.types import SchemaMode
from tiltyard.pipeline.streams.batches import with_sequence


def read_json_rows(
    lines: Sequence[bytes], sequences: Sequence[int], table: pa.Schema | None
) -> tuple[list[pa.RecordBatch], list[tuple[int, RejectedRow]]]:
    """Return the rows with their sequence numbers, and those that do not fit by their sequence numbers.

    Each line is one JSON object without line breaks.
    """
    if not lines:
        return [], []
    try:
        return _read_lines(lines, sequences, table)
    except RefusedError as error:  # a name that no table can have: of which line is not said
        if len(lines) == 1:
            return [], [(sequences[0], RejectedRow(lines[0].decode(errors="replace"), str(error)))]
    middle = len(lines) // 2
    batches, rejected = read_json_rows(lines[:middle], sequences[:middle], table)
    later_batches, later_rejected = read_json_rows(lines[middle:], sequences[middle:], table)
    return [*batches, *later_batches], [*rejected, *later_rejected]


def _read_lines(
    lines: Sequence[bytes], sequences: Sequence[int], table: pa.Schema | None
) -> tuple[list[pa.RecordBatch], list[tuple[int, RejectedRow]]]:
    """Read lines of which all names are such as a table can have. Raises RefusedError."""
    block = b"\n".join(lines) + b"\n"
    profile = profile_json(block, complete=True)
    if not profile.fields:
        empty = "the object has no fields"
        return [], [
            (number, RejectedRow(line.decode(errors="replace"), empty))
            for number, line in zip(sequences, lines, strict=True)
        ]
    inspected = InspectedFile("the messages", pa.schema([]), (), profile)
    reader = json_reader(Format.JSON, [inspected], SchemaMode.UNION, {}, {})
    if table is not None:
        reader = adapt_to_table(reader, table, ColumnSelection())
    parser = make_json_parser(reader.schema, reader.inferred, reader.numbers_as_text)
    batches: list[pa.RecordBatch] = []
    rejected: list[tuple[int, RejectedRow]] = []
    position = 0
    for rows in parse_json_lines(block, parser, 1):
        if isinstance(rows, RejectedRow):
            rejected.append((sequences[position], rows))
            position += 1
            continue
        for batch in rows.combine_chunks().to_batches():
            numbers = pa.array(sequences[position : position + batch.num_rows], pa.int64())
            batches.append(with_sequence(batch, numbers))
            position += batch.num_rows
    return batches, rejected
