"""Assign rows to splits by hashes, so that a row stays in its split whatever other rows come.

The unit is what is assigned: a value of the columns `by`, or the key of a row. Its hash is BLAKE2b of 8 bytes, keyed
by the seed, over the value's bytes (text in UTF-8; integers, decimals and booleans as text; dates and times as the
text of their number); of several columns, over the hashes of each. A split's score for a unit is -ln(u) / fraction,
where u is in (0, 1), made of the unit's hash and the split's name; the lowest score has the unit. The fractions'
remainder to 1 is a split without a name, whose rows are in no split. So a split that alone is enlarged
only gains units, one that alone is made smaller only loses some, and no stateless assignment of more than two splits
can move fewer in the worst case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.schemas.nested_types import is_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Numbers = NDArray[np.int64]

NO_SPLIT = -1
"""The number of the split that a row without a split has."""
_SAMPLE = "\0sample"
"""What the draw of a sample is named by, which no split is."""
_REST = ""


def hash_units(columns: Sequence[pa.Array], seed: int) -> Hashes:
    """Return the hash of each row's unit, of columns without nulls."""
    hashed = [_hash_values(_canonical(column), seed) for column in columns]
    if len(hashed) == 1:
        return hashed[0]
    joined = np.ascontiguousarray(np.stack(hashed, axis=1)).astype("<u8")
    size = 8 * len(hashed)
    rows = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(joined), [None, pa.py_buffer(joined.tobytes())])
    return _hash_values(rows, seed)


def mix(values: Hashes) -> Hashes:
    """Return numbers that look random for numbers that do not: the finalizer of SplitMix64."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def is_sampled(units: Hashes, weights: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows are in a sample, each by its weight (0 to 1): those of one unit share their draw."""
    return _draws(units, _SAMPLE) < weights


def assign_splits(units: Hashes, fractions: Mapping[str, float]) -> NDArray[np.int8]:
    """Return the number of each row's split, in the order of the fractions; NO_SPLIT for a row in none."""
    return _numbered(_scores(units, fractions).argmin(axis=0), len(fractions))


def assign_by_class(units: Hashes, classes: Numbers, fractions: Mapping[str, float]) -> NDArray[np.int8]:
    """Assign units so that each split has its fraction of each class, to within one unit.

    Of each class, the units for which another split scores almost as well are moved, as few as there have to be. All
    rows of a unit have to be of one class (`mixed_units`).
    """
    distinct, first, inverse = np.unique(units, return_index=True, return_inverse=True)
    scores = _scores(distinct, fractions)
    chosen = scores.argmin(axis=0)
    of_class = classes[first]
    by_class = np.argsort(of_class, kind="stable")
    ends = np.flatnonzero(np.diff(of_class[by_class])) + 1
    for members in np.split(by_class, ends):
        chosen[members] = _balanced(chosen[members], scores[:, members], _shares(len(members), fractions))
    return _numbered(chosen, len(fractions))[inverse]


def mixed_units(units: Hashes, classes: Numbers) -> int:
    """Return the position of a row whose unit has rows of several classes; -1 without one."""
    _, first, inverse = np.unique(units, return_index=True, return_inverse=True)
    mixed = np.flatnonzero(classes[first][inverse] != classes)
    return int(mixed[0]) if len(mixed) else -1


def _balanced(chosen: Numbers, scores: NDArray[np.float64], shares: Numbers) -> Numbers:
    """Return the splits of some units, changed until each split has its share, where that changes the least."""
    chosen = chosen.copy()
    while True:
        surplus = np.bincount(chosen, minlength=len(shares)) - shares
        source, target = int(surplus.argmax()), int(surplus.argmin())
        count = int(min(surplus[source], -surplus[target]))
        if count == 0:
            return chosen
        candidates = np.flatnonzero(chosen == source)
        order = np.argsort(scores[target, candidates] / scores[source, candidates], kind="stable")
        chosen[candidates[order[:count]]] = target


def _shares(total: int, fractions: Mapping[str, float]) -> Numbers:
    """Return how many of some units each split has, and no split: whole numbers, the greatest remainders rounded up."""
    exact = total * np.array([*fractions.values(), rest_of(fractions)])
    shares = np.floor(exact + 1e-9).astype(np.int64)
    missing = total - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:missing]] += 1
    return shares


def rest_of(fractions: Mapping[str, float]) -> float:
    """Return the fraction of the rows that are in no split: 0 where only rounding is left."""
    rest = 1.0 - float(np.sum(list(fractions.values())))
    return rest if rest > 1e-9 else 0.0


def _scores(units: Hashes, fractions: Mapping[str, float]) -> NDArray[np.float64]:
    """Return the score of each split for each unit, those of no split last: infinite where there is no rest."""
    rows = [-np.log(_draws(units, name)) / fraction for name, fraction in fractions.items()]
    rest = rest_of(fractions)
    rows.append(-np.log(_draws(units, _REST)) / rest if rest else np.full(len(units), np.inf))
    return np.stack(rows)


def _draws(units: Hashes, name: str) -> NDArray[np.float64]:
    """Return a number in (0, 1) for each unit and a name."""
    salt = np.frombuffer(hashlib.blake2b(name.encode(), digest_size=8).digest(), "<u8")[0]
    return ((mix(units ^ salt) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _numbered(chosen: Numbers, splits: int) -> NDArray[np.int8]:
    return np.where(chosen == splits, NO_SPLIT, chosen).astype(np.int8)


def _canonical(column: pa.Array) -> pa.Array:
    """Return the values as bytes that are the same for all types that can hold them."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    if pa.types.is_fixed_size_binary(column.type) or pa.types.is_binary(column.type):
        return column.cast(pa.large_binary())
    if not is_text(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.large_binary())


def _hash_values(values: pa.Array, seed: int) -> Hashes:
    """Return the hash of each value; equal ones are hashed once."""
    encoded = pc.dictionary_encode(values)
    keyed = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "little"))
    digests = bytearray()
    for value in encoded.dictionary:
        own = keyed.copy()
        own.update(value.as_buffer())
        digests += own.digest()
    hashes = np.frombuffer(bytes(digests), "<u8")
    return hashes[encoded.indices.to_numpy(zero_copy_only=False)] if len(hashes) else np.empty(0, np.uint64)
