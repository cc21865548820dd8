"""Signatures: hashes of a value that values alike share some of, and the exact comparison of two values.

A signature is 16 bytes that only equal values share, then the hash of each band, eight bytes each. A pair at the
threshold shares the hash of one band at least with a chance of `MIN_RECALL`; a closer pair with a larger one.

A text's band has minima of hashed shingles (MinHash); a vector's has the sides of random planes that it is on, or for
the distance `l2` its places along random lines.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Metric = Literal["cosine", "l2"]

CONTENT_BYTES = 16
BAND_BYTES = 8
MIN_RECALL = 0.99
"""The chance by which a pair right at the threshold is compared."""
MAX_TEXT_BANDS = 40
MAX_TEXT_HASHES = 128
"""Minima that a text's signature is made of: each is a pass over its shingles."""
MAX_VECTOR_BANDS = 48
MAX_VECTOR_HASHES = 1024
"""Planes, or lines, of a vector's signature: each is a product with the vector."""
MAX_BAND_HASHES = 24
"""Hashes of one band: of a thousand million values with nothing in common, 60 share each one."""
MAX_TEXT_CHARACTERS = 1_000_000
"""Characters of a text that is compared: 32 bytes of memory each."""
_BLOCK_CHARACTERS = 1 << 19
"""Characters that are hashed at once."""
_BLOCK_VECTORS = 2048
_L2_WIDTH = 6.0
"""How wide a place on a line is, in distances of the threshold."""
_SEED = 20_240_229
_ODD = np.uint64(0x9E37_79B9_7F4A_7C15)


class Comparison(Protocol):
    """A method: what it reads of a column into signatures, and which pairs of values it takes for duplicates.

    `identity` tells one whose signatures are others.
    """

    @property
    def identity(self) -> str:
        """Return what signatures depend on."""

    @property
    def bands(self) -> int:
        """Return how many bands a signature has; 0 where only equal values are duplicates."""

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the signatures of the values in the only column of a batch, null for those that are in no group."""

    def are_alike(self, values: pa.Array, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
        """Return of pairs of positions whether the values there are within the threshold, by comparing them."""


@dataclass(frozen=True, slots=True)
class Banding:
    """How many bands there are, and how many hashes each has."""

    bands: int
    hashes: int

    @classmethod
    def of(cls, chance: float, max_bands: int, max_hashes: int) -> Banding:
        """Return the most selective banding that finds pairs of which a hash is equal with that chance."""
        for hashes in range(MAX_BAND_HASHES, 0, -1):
            missed = 1 - min(chance**hashes, 1 - 1e-9)
            bands = max(1, math.ceil(math.log(1 - MIN_RECALL) / math.log(missed)))
            if bands <= max_bands and bands * hashes <= max_hashes:
                return cls(bands, hashes)
        return cls(max_bands, 1)


@dataclass(frozen=True)
class EqualValues:
    """Equal values are duplicates: texts, bytes, numbers, dates, times and booleans."""

    bands = 0
    identity = "exact 1"

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(0)
        if not _is_binary(column.type):
            column = column.cast(pa.string())
        contents = [None if value is None else _as_bytes(value) for value in column.to_pylist()]
        is_valid = [content is not None for content in contents]
        return _to_signatures([_digest(content or b"") for content in contents], None, is_valid)

    def are_alike(self, values: pa.Array, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
        """Compare the values; what has equal signatures is equal, and needs no comparison."""
        equal = pc.equal(values.take(pa.array(left)), values.take(pa.array(right)))
        return np.asarray(equal.to_numpy(zero_copy_only=False), bool)


@dataclass(frozen=True)
class SimilarTexts:
    """Texts are duplicates whose shingles, runs of so many characters, have a Jaccard similarity of the threshold.

    Case and the kind of white space make no difference. A text that is shorter than a shingle is one.
    """

    threshold: float
    shingle: int

    @property
    def identity(self) -> str:
        return f"minhash 1 {self._banding} {self.shingle}"

    @property
    def bands(self) -> int:
        return self._banding.bands

    @cached_property
    def _banding(self) -> Banding:
        return Banding.of(self.threshold, MAX_TEXT_BANDS, MAX_TEXT_HASHES)

    @cached_property
    def _factors(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the factors and the addends of the hash functions: with an odd factor, each is a permutation."""
        numbers = np.random.default_rng(_SEED).integers(0, 1 << 32, (2, self._banding.bands * self._banding.hashes))
        return (numbers[0] | 1).astype(np.uint32), numbers[1].astype(np.uint32)

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the signatures. Raises RefusedError for a text of more than MAX_TEXT_CHARACTERS."""
        texts = batch.column(0).to_pylist()
        is_valid = [text is not None for text in texts]
        plain = [normalize_text(text or "") for text in texts]
        hashes = np.concatenate([self._hash_bands(block) for block in _blocks(plain)]) if plain else None
        return _to_signatures([_digest(_as_bytes(text)) for text in plain], hashes, is_valid)

    def _hash_bands(self, texts: Sequence[str]) -> NDArray[np.uint64]:
        """Return the hashes of texts' bands, one row each."""
        hashes, starts = _hash_shingles(texts, self.shingle)
        shingles = (hashes >> np.uint64(32)).astype(np.uint32)
        factors, addends = self._factors
        minima = np.empty((len(texts), len(factors)), np.uint32)
        for number, (factor, addend) in enumerate(zip(factors, addends, strict=True)):
            minima[:, number] = np.minimum.reduceat(shingles * factor + addend, starts)
        return _combine(minima.astype(np.uint64), self._banding)

    def are_alike(self, values: pa.Array, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
        """Compare the sets of shingles, which are there as hashes of 64 bits."""
        texts = [normalize_text(text or "") for text in values.to_pylist()]
        sets = [found for block in _blocks(texts) for found in _shingle_sets(block, self.shingle)]
        common, either = np.empty(len(left)), np.empty(len(left))
        for number, (first, second) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
            one, other = sets[first], sets[second]
            common[number] = np.count_nonzero(one.take(one.searchsorted(other), mode="clip") == other)
            either[number] = len(one) + len(other)
        return np.asarray(common >= self.threshold * (either - common) - 1e-9, bool)


@dataclass(frozen=True)
class CloseVectors:
    """Vectors are duplicates whose distance is up to the threshold, as searches give it: `l2` is squared.

    A vector with a NaN or an infinity, and for `cosine` one of zeros, is in no group.
    """

    threshold: float
    metric: Metric
    dimension: int

    @property
    def identity(self) -> str:
        return f"vector 1 {self.metric} {self._banding} {self.threshold if self.metric == 'l2' else ''}"

    @property
    def bands(self) -> int:
        return self._banding.bands

    @cached_property
    def _banding(self) -> Banding:
        if self.metric == "cosine":
            chance = 1 - math.acos(1 - self.threshold) / math.pi
        else:
            chance = math.erf(_L2_WIDTH / math.sqrt(2)) - math.sqrt(2 / math.pi) / _L2_WIDTH
        return Banding.of(chance, MAX_VECTOR_BANDS, MAX_VECTOR_HASHES)

    @cached_property
    def _planes(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return normals, a column each, and how far a place of `l2` is moved along its line, in widths."""
        chance, count = np.random.default_rng(_SEED), self._banding.bands * self._banding.hashes
        return chance.standard_normal((self.dimension, count), np.float32), chance.random(count, np.float32)

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        vectors, is_valid = _to_matrix(batch.column(0), self.dimension, np.float32)
        is_valid &= np.isfinite(vectors).all(axis=1)
        if self.metric == "cosine":
            is_valid &= vectors.any(axis=1)
        vectors[~is_valid] = 0
        vectors += np.float32(0)  # so that -0.0 is 0.0, which it equals
        blocks = [self._hash_bands(vectors[at : at + _BLOCK_VECTORS]) for at in range(0, len(vectors), _BLOCK_VECTORS)]
        contents = [_digest(vector.tobytes()) for vector in vectors]
        return _to_signatures(contents, np.concatenate(blocks) if blocks else None, is_valid.tolist())

    def _hash_bands(self, vectors: NDArray[np.float32]) -> NDArray[np.uint64]:
        normals, moved = self._planes
        places = vectors @ normals
        if self.metric == "cosine":
            return _combine((places > 0).astype(np.uint64), self._banding)
        width = np.float32(_L2_WIDTH * math.sqrt(self.threshold))
        return _combine(np.floor(places / width + moved).astype(np.int64).view(np.uint64), self._banding)

    def are_alike(self, values: pa.Array, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
        """Compute the distances."""
        vectors, _ = _to_matrix(values, self.dimension, np.float64)
        if self.metric == "l2":
            squares = ((vectors[left] - vectors[right]) ** 2).sum(axis=1)
            return np.asarray(squares <= self.threshold * (1 + 1e-9), bool)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = np.einsum("ij,ij->i", vectors[left], vectors[right])
        return np.asarray(1 - cosines <= self.threshold + 1e-9, bool)


def normalize_text(text: str) -> str:
    """Return a text in lower case, with single spaces."""
    return " ".join(text.lower().split())


def split_signatures(signatures: pa.Array, bands: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the contents (two numbers each) and the hashes of bands of signatures, of which none is null."""
    width = CONTENT_BYTES + BAND_BYTES * bands
    if len(signatures) == 0:
        return np.empty((0, 2), np.int64), np.empty((0, bands), np.int64)
    offsets = np.frombuffer(signatures.buffers()[1], np.int32)[signatures.offset : signatures.offset + 2]
    data = np.frombuffer(signatures.buffers()[2], np.int64, len(signatures) * width // 8, int(offsets[0]))
    numbers = data.reshape(len(signatures), width // 8)
    return numbers[:, :2], numbers[:, 2:]


def _to_signatures(contents: list[bytes], bands: NDArray[np.uint64] | None, is_valid: list[bool]) -> pa.Array:
    rows = len(contents)
    content = np.frombuffer(b"".join(contents), np.uint64).reshape(rows, 2)
    numbers = content if bands is None else np.concatenate([content, bands], axis=1)
    keep = np.asarray(is_valid, bool)
    offsets = np.concatenate([[0], np.cumsum(keep)]).astype(np.int32) * np.int32(numbers.shape[1] * 8)
    mask = np.packbits(keep, bitorder="little")
    data = np.ascontiguousarray(numbers[keep]).tobytes()
    buffers = [pa.py_buffer(mask.tobytes()), pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CONTENT_BYTES).digest()


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _blocks(texts: Sequence[str]) -> list[list[str]]:
    """Divide texts into blocks of about `_BLOCK_CHARACTERS`. Raises RefusedError for a text that is too long."""
    blocks: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if len(text) > MAX_TEXT_CHARACTERS:
            raise RefusedError(
                f"A text has {len(text):,} characters, and {MAX_TEXT_CHARACTERS:,} at most are compared: divide it, "
                "or leave such rows out of the table."
            )
        if size + len(text) > _BLOCK_CHARACTERS and blocks[-1]:
            blocks.append([])
            size = 0
        blocks[-1].append(text)
        size += len(text)
    return blocks


def _shingle_sets(texts: Sequence[str], size: int) -> list[NDArray[np.uint64]]:
    """Return the hashes of each text's shingles, each once, in order."""
    if not texts:
        return []
    hashes, starts = _hash_shingles(texts, size)
    return [np.unique(part) for part in np.split(hashes, starts[1:])]


def _hash_shingles(texts: Sequence[str], size: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of all shingles, text after text, and where those of each text begin; each has one at least."""
    padded = [text.ljust(size, "\0") for text in texts]
    lengths = np.array([len(text) for text in padded])
    points = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    hashes = np.zeros(len(points) - size + 1, np.uint64)
    for place in range(size):
        hashes *= _ODD
        hashes += points[place : place + len(hashes)]
    is_within = np.ones(len(points), bool)
    ends = np.cumsum(lengths)
    for place in range(1, size):
        is_within[ends - place] = False
    counts = lengths - size + 1
    starts = np.cumsum(counts) - counts
    return _mix(hashes[is_within[: len(hashes)]]), starts


def _combine(hashes: NDArray[np.uint64], banding: Banding) -> NDArray[np.uint64]:
    """Return one hash for each band; those of two bands differ."""
    parts = hashes.reshape(len(hashes), banding.bands, banding.hashes)
    combined = np.broadcast_to(_mix(np.arange(banding.bands, dtype=np.uint64)), parts.shape[:2]).copy()
    for number in range(banding.hashes):
        combined = _mix(combined ^ (parts[:, :, number] * _ODD))
    return combined


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return hashes of 64-bit numbers (splitmix64's finalizer)."""
    mixed = (numbers + _ODD) & np.uint64(0xFFFF_FFFF_FFFF_FFFF)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return mixed ^ (mixed >> np.uint64(31))


def _to_matrix(values: pa.Array, dimension: int, kind: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return vectors as rows of a matrix of its own, and which of them are there, without any null within."""
    is_valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), bool)
    flat = values.values.slice(values.offset * dimension, len(values) * dimension)
    within = np.asarray(flat.is_valid().to_numpy(zero_copy_only=False), bool).reshape(len(values), dimension)
    matrix = flat.fill_null(0).to_numpy(zero_copy_only=False).astype(kind).reshape(len(values), dimension)
    return matrix, is_valid & within.all(axis=1)
