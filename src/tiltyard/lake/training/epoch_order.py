"""The order of the rows of an epoch, defined once: ranks and workers take every n-th batch of it.

Without a seed it is the order of the source. With one, the rows are read in blocks of neighbours, which keeps reading
fast, and mixed in two steps. The blocks are permuted over the whole split; then as many as fit the buffer are a
round. A round's blocks are dealt to `shards` parts, the rows of each part are permuted, and its batches come from the
parts in turn: batch n is of part n mod `shards`. So where ranks × workers divides the shards, each reads parts of its
own, and no row is read twice. What is left behind the last whole round is one part: all its rows are permuted. A part
has at least MIN_BLOCKS blocks: where it has few rows, a block has fewer than MAX_BLOCK_ROWS, down to one.

All permutations sort by a hash of the seed, the epoch and what is permuted: they are the same with any release of
numpy, on any machine. In memory are 8 bytes for each block of the split, besides the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tiltyard.lake.training.splits import mix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

MAX_BLOCK_ROWS = 64
"""Neighbours that stay together up to the last step: they come in one round, mixed with the others of their part."""
MIN_BLOCKS = 64
"""Blocks that a part is mixed of."""
MAX_SHARDS = 8
"""Parts of a round, where its rows make as many batches."""
MAX_BUFFER_ROWS = 1 << 16
"""Rows of a round, however small they are."""


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """What decides the order of a split's rows: how many there are, and how they are mixed; `seed` None: not at all."""

    rows: int
    batch_size: int
    buffer_rows: int
    seed: int | None

    @property
    def shards(self) -> int:
        """Return how many parts a round has."""
        return min(MAX_SHARDS, max(1, self.buffer_rows // self.batch_size))

    @property
    def part_batches(self) -> int:
        """Return how many batches a part of a round has."""
        return max(1, self.buffer_rows // (self.shards * self.batch_size))

    @property
    def part_rows(self) -> int:
        """Return how many rows a part of a round has."""
        return self.part_batches * self.batch_size

    @property
    def block_rows(self) -> int:
        """Return how many neighbours a block has."""
        return min(MAX_BLOCK_ROWS, max(1, self.part_rows // MIN_BLOCKS))

    @property
    def rounds(self) -> int:
        """Return how many whole rounds an epoch has."""
        return self.rows // (self.shards * self.part_rows) if self.seed is not None else 0

    @property
    def round_batches(self) -> int:
        """Return how many batches a whole round has, or are read at once where nothing is mixed."""
        return self.shards * self.part_batches

    @property
    def batches(self) -> int:
        """Return how many batches an epoch has; the last one may have fewer rows."""
        return -(-self.rows // self.batch_size)


class EpochOrder:
    """The order of one epoch."""

    def __init__(self, spec: OrderSpec, epoch: int) -> None:
        self.spec = spec
        self.epoch = epoch
        if spec.seed is not None:
            whole = spec.rows // spec.block_rows  # a part of a block stays last: the shift says which rows that has
            rest = np.arange(whole, -(-spec.rows // spec.block_rows))
            self._blocks = np.concatenate([self._permutation("blocks", whole), rest])
            self._shift = self._key("shift") % max(1, spec.rows)

    def groups(self, first: int, stride: int, end: int) -> Iterator[list[int]]:
        """Yield the numbers of batches from `first` on, each `stride`-th before `end`, as they are read together."""
        size = self.spec.round_batches if self.spec.seed is not None else self.spec.round_batches * stride
        numbers = range(first, end, stride)
        position = 0
        while position < len(numbers):
            limit = (numbers[position] // size + 1) * size
            count = -(-(min(limit, end) - numbers[position]) // stride)
            yield list(numbers[position : position + count])
            position += count

    def rows_of(self, batches: Sequence[int]) -> list[Rows]:
        """Return the rows of some batches of one group, as numbers within the split."""
        spec = self.spec
        if spec.seed is None:
            return [self._plain(number) for number in batches]
        found: list[Rows] = []
        mixed: dict[tuple[int, int], Rows] = {}
        for number in batches:
            turn, place = divmod(number, spec.round_batches)
            if turn < spec.rounds:
                part, position = place % spec.shards, place // spec.shards
            else:
                turn, part, position = spec.rounds, 0, number - spec.rounds * spec.round_batches
            if (turn, part) not in mixed:
                mixed[turn, part] = self._part(turn, part)
            start = position * spec.batch_size
            found.append(mixed[turn, part][start : start + spec.batch_size])
        return found

    def _plain(self, number: int) -> Rows:
        start = number * self.spec.batch_size
        return np.arange(start, min(start + self.spec.batch_size, self.spec.rows))

    def _part(self, turn: int, part: int) -> Rows:
        """Return the permuted rows of a part of a round; behind the last whole one, all that are left."""
        spec = self.spec
        first = turn * spec.shards * spec.part_rows + part * spec.part_rows
        end = first + spec.part_rows if turn < spec.rounds else spec.rows
        places = np.arange(first, end)
        rows = self._blocks[places // spec.block_rows] * spec.block_rows + places % spec.block_rows
        rows = (rows + self._shift) % spec.rows
        mixed: Rows = rows[self._permutation(f"part {turn} {part}", len(rows))]
        return mixed

    def _permutation(self, name: str, count: int) -> Rows:
        numbers = np.arange(count, dtype=np.uint64)
        with np.errstate(over="ignore"):
            hashes = mix(mix(numbers + np.uint64(self._key(name))))
        return np.argsort(hashes, kind="stable")

    def _key(self, name: str) -> int:
        text = f"{self.spec.seed} {self.epoch} {name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
