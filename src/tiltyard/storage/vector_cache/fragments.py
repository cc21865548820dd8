"""Read vectors of fragments, and which rows of a fragment a version has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tiltyard.storage.caches.fragment_contents import contents, deletions

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lance
    import pyarrow as pa

Array = np.ndarray[Any, Any]

MAX_FRAGMENTS = 256
"""Fragments of a table beyond which Lance searches it: each version's are compared with those in memory."""
OFFSET_MASK = 0xFFFF_FFFF


class UnsupportedVectorsError(Exception):
    """The vectors or rows cannot be searched in memory; the message says why."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a version. Equal `content` means equal values, equal `deletions` also the same deleted rows."""

    number: int
    physical_rows: int
    content: str
    deletions: str

    @property
    def key(self) -> tuple[int, str]:
        return self.number, self.content


def read_fragments(dataset: lance.LanceDataset) -> tuple[Fragment, ...]:
    """Return the fragments of a version. Raises UnsupportedVectorsError."""
    fragments = dataset.get_fragments()
    if len(fragments) > MAX_FRAGMENTS:
        raise UnsupportedVectorsError(f"the table has more than {MAX_FRAGMENTS} fragments: compact it")
    return tuple(_describe(fragment) for fragment in fragments)


def _describe(fragment: lance.LanceFragment) -> Fragment:
    metadata = fragment.metadata
    if metadata.row_id_meta is not None:
        raise UnsupportedVectorsError("the table has stable row ids")
    if not metadata.physical_rows:
        raise UnsupportedVectorsError("its manifest is of an older format")
    return Fragment(metadata.id, metadata.physical_rows, contents(metadata), deletions(metadata))


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one fragment that are in memory: `offsets` have a vector, `nulls` have none; both ascend.

    In an index, the rows' positions begin at `start`. Outside of one, `vectors` has them.
    """

    fragment: Fragment
    offsets: Array
    nulls: Array
    start: int = 0
    vectors: Array | None = None

    def mask_of(self, live: Array) -> Array | None:
        """Return which rows of the block are among `live` offsets; None if a live one is not in the block."""
        mask, known = self.select(live)
        nulls = 0 if not len(self.nulls) else int(np.isin(live, self.nulls, assume_unique=True).sum())
        return mask if known + nulls == len(live) else None

    def select(self, offsets: Array) -> tuple[Array, int]:
        """Return a mask of the block's rows at these offsets, and their number."""
        mask = np.zeros(len(self.offsets), dtype=bool)
        if not len(self.offsets) or not len(offsets):
            return mask, 0
        if len(self.offsets) == self.fragment.physical_rows:  # a row's offset is its place
            mask[offsets] = True
            return mask, len(offsets)
        places = np.minimum(np.searchsorted(self.offsets, offsets), len(self.offsets) - 1)
        places = places[self.offsets[places] == offsets]
        mask[places] = True
        return mask, len(places)


def live_offsets(dataset: lance.LanceDataset, fragment: Fragment) -> Array:
    """Return the offsets of the rows of a fragment that are not deleted, in ascending order."""
    if not fragment.deletions:
        return np.arange(fragment.physical_rows, dtype=np.uint32)
    source = dataset.get_fragment(fragment.number)
    assert source is not None
    rows = source.scanner(columns=[], with_row_id=True).to_table().column("_rowid").to_numpy()
    return np.sort((rows & OFFSET_MASK).astype(np.uint32))


def read_vectors(
    dataset: lance.LanceDataset, fragment: Fragment, column: str, *, normalize: bool
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield offsets with a vector, their vectors, and offsets without one, batch by batch.

    Raises UnsupportedVectorsError for vectors that have no distance.
    """
    source = dataset.get_fragment(fragment.number)
    assert source is not None
    for batch in source.scanner(columns=[column], with_row_id=True, batch_size=4096).to_reader():
        offsets = (batch.column("_rowid").to_numpy() & OFFSET_MASK).astype(np.uint32)
        vectors, valid = _matrix(batch.column(column))
        yield offsets[valid], _checked(vectors, normalize=normalize), offsets[~valid]


def _matrix(values: pa.FixedSizeListArray) -> tuple[Array, Array]:
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    flat = values.drop_null().flatten()
    if flat.null_count:
        raise UnsupportedVectorsError("some of its vectors have null elements")
    numbers = flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return numbers.reshape(-1, values.type.list_size), valid


def _checked(vectors: Array, *, normalize: bool) -> Array:
    if not np.isfinite(vectors).all():
        raise UnsupportedVectorsError("some of its vectors are not finite")
    if not normalize:
        return vectors
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not norms.all() or not np.isfinite(norms).all():
        raise UnsupportedVectorsError("some of its vectors have no direction, so no cosine")
    normalized: Array = vectors / norms
    return normalized
