"""Cut large CSV files into pieces where records begin: a line break within quotes is none of these places.

Whether a place lies within quotes depends on all quotes before it. So tasks of their own scan the ranges of a file,
each for every case; the results, in the order of the ranges, then tell which case holds.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

from tiltyard.pipeline.sources import text_blocks
from tiltyard.pipeline.sources.csv_records import CsvDialect, TextState, scan_lines
from tiltyard.pipeline.sources.filesystem import open_file
from tiltyard.pipeline.sources.readers import Piece

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RangeScan:
    """What a range is, by each TextState in which its first line may begin.

    `records` are the offsets where its first record begins, None where none does; `ends` say how it ends.
    """

    records: tuple[int | None, ...]
    ends: tuple[TextState, ...]


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Scan pieces of CSV files in their dialects; the pieces are byte ranges."""

    pieces: tuple[Piece, ...]
    storage: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.pieces)

    def __call__(self) -> list[RangeScan]:
        """Return a scan of each piece, of the lines that begin in it."""
        scans = []
        for piece in self.pieces:
            assert piece.dialect is not None
            start, end = piece.part
            with open_file(piece.path, self.storage) as file:
                scans.append(scan_range(file, start, end, piece.dialect))
        return scans

    def split(self, count: int) -> list[ScanTask]:
        """Split the task into tasks of `count` pieces each."""
        parts = (self.pieces[first : first + count] for first in range(0, len(self.pieces), count))
        return [replace(self, pieces=part) for part in parts]


def scan_range(file: IO[bytes], start: int, end: int, dialect: CsvDialect) -> RangeScan:
    """Scan the lines that begin in the bytes from `start` to `end`."""
    position = text_blocks.find_line(file, start, end)
    file.seek(0)
    ends = list(TextState)[: None if dialect.escape else TextState.UNQUOTED]
    records: list[int | None] = [None for _ in ends]
    for block in text_blocks.read_line_blocks(file, position, end, _BLOCK_BYTES) if position < end else ():
        text = block if position else block.removeprefix(codecs.BOM_UTF8)
        position += len(block) - len(text)
        scans = {state: scan_lines(text, dialect, state) for state in set(ends)}  # mostly one, soon
        for case in range(len(ends)):
            begin, ends[case] = scans[ends[case]]
            if records[case] is None and begin is not None:
                records[case] = position + begin
        position += len(text)
    return RangeScan(tuple(records), tuple(ends))


def cut_at_records(pieces: Sequence[Piece], scans: Sequence[RangeScan]) -> tuple[Piece, ...]:
    """Move the cuts between the pieces of one file to where records begin; long records leave fewer pieces."""
    cuts, case = [pieces[0].part[0]], TextState.RECORD
    for number, scan in enumerate(scans):
        if number and (record := scan.records[case]) is not None:
            cuts.append(record)
        case = scan.ends[case]
    cuts.append(pieces[-1].part[1])
    return tuple(replace(pieces[0], size=end - start, part=(start, end)) for start, end in itertools.pairwise(cuts))
