"""Cluster vectors by k-means with numpy: the same centroids for the same vectors and seed, in any process.

Lance's own training is random, and so cannot be repeated by a task that is run again. Vectors and centroids are rows of
float32 matrices, distances are squared Euclidean ones. The steps are Lloyd's; above `MAX_FLAT` centroids there are two
levels, coarse clusters first and then the centroids of each in proportion to its vectors, as Lance has several; a step
of all centroids together then moves those at the borders of coarse clusters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.model.columns.vector_columns import Matrix

MAX_FLAT = 256
"""Most centroids that are trained together."""
ITERATIONS = 50
"""Most steps, if the request does not say."""
_TOLERANCE = 3e-4
"""The share by which a step lowers the mean error at least, else it was the last one."""
ROWS_PER_CENTROID = 256
"""Vectors for each centroid that coarse clusters are trained on."""

MAX_COMPARED_CENTROIDS = 256
"""Centroids that vectors of a coarse cluster are compared with when all are refined: those nearest to its own."""

_BLOCK = 1 << 20
"""Distances that are computed at once: they stay in the processor's cache."""
_SPLIT = np.float32(1 / 1024)
"""By which share of its length a centroid moves to either side when it is split."""


def assign(rows: Matrix, centroids: Matrix) -> tuple[Matrix, float]:
    """Return the position of each row's nearest centroid, as uint32, and the mean squared distance to it."""
    positions = np.empty(len(rows), np.uint32)
    error, halves = 0.0, np.einsum("ij,ij->i", centroids, centroids) / 2
    step = max(1, _BLOCK // len(centroids))
    for first in range(0, len(rows), step):
        block = rows[first : first + step]
        scores = block @ centroids.T
        np.subtract(halves, scores, out=scores)
        nearest = scores.argmin(axis=1)
        positions[first : first + step] = nearest
        squares = float(np.einsum("ij,ij->", block, block))
        error += squares + 2 * float(scores[np.arange(len(nearest)), nearest].sum(dtype=np.float64))
    return positions, max(error, 0.0) / max(1, len(rows))


def train(rows: Matrix, count: int, seed: int, iterations: int) -> Matrix:
    """Return `count` centroids of the rows, of which there are at least as many."""
    if count <= MAX_FLAT:
        return _train_flat(rows, count, seed, iterations)
    coarse = train_coarse(rows, count, seed, iterations)
    positions, _ = assign(rows, coarse)
    sizes = np.bincount(positions, minlength=len(coarse))
    order, ends = positions.argsort(kind="stable"), sizes.cumsum()
    parts = [
        # A cluster with most of the rows is not divided again: they may all be the same.
        (train if share <= count // 2 else _train_flat)(
            rows[order[end - size : end]], share, seed + 1 + number, iterations
        )
        for number, (size, end, share) in enumerate(zip(sizes, ends, shares(sizes, count), strict=True))
        if share
    ]
    return np.concatenate(parts)


def coarse_count(count: int) -> int:
    """Return how many coarse clusters so many centroids are trained in."""
    return max(1, round(math.sqrt(count)))


def train_coarse(rows: Matrix, count: int, seed: int, iterations: int) -> Matrix:
    """Return the centroids of the coarse clusters for `count` centroids, trained on a part of the rows."""
    coarse = coarse_count(count)
    return _train_flat(thin(rows, coarse * ROWS_PER_CENTROID), coarse, seed, iterations)


def thin(rows: Matrix, count: int) -> Matrix:
    """Return up to `count` of the rows, at even distances."""
    return rows if len(rows) <= count else rows[np.arange(count) * len(rows) // count]


def shares(sizes: Any, count: int) -> list[int]:
    """Divide `count` centroids among clusters in proportion to their sizes, one at least where there are rows.

    No cluster gets more than it has rows, of which there are at least `count` in all.
    """
    sizes = np.asarray(sizes, np.int64)
    exact = sizes * (count / max(1, int(sizes.sum())))
    result = np.minimum(sizes, np.maximum(exact.astype(np.int64), sizes > 0))
    while (missing := count - int(result.sum())) > 0:
        open_ = np.flatnonzero(result < sizes)
        chosen = open_[np.argsort((result - exact)[open_], kind="stable")[:missing]]
        result[chosen] += 1
    while (excess := int(result.sum()) - count) > 0:
        open_ = np.flatnonzero(result > 1)
        if not len(open_):  # more clusters than centroids
            filled = np.flatnonzero(result)
            result[filled[np.argsort(sizes[filled], kind="stable")[:excess]]] = 0
            break
        chosen = open_[np.argsort((exact - result)[open_], kind="stable")[:excess]]
        result[chosen] -= 1
    return [int(share) for share in result]


def choose_compared(centroids: Matrix, first: int, count: int) -> Matrix:
    """Return the positions of the centroids nearest to `count` of them from `first` on, these included, in order."""
    if len(centroids) <= MAX_COMPARED_CENTROIDS:
        return np.arange(len(centroids))
    nearest = np.full(len(centroids), np.inf, np.float32)
    halves = np.einsum("ij,ij->i", centroids, centroids) / 2
    step = max(1, _BLOCK // len(centroids))
    for start in range(first, first + count, step):
        own = slice(start, min(start + step, first + count))
        distances = halves[own, np.newaxis] + halves - centroids[own] @ centroids.T
        np.minimum(nearest, distances.min(axis=0), out=nearest)
    nearest[first : first + count] = -np.inf
    return np.sort(nearest.argsort(kind="stable")[: max(MAX_COMPARED_CENTROIDS, count)])


def add_up(rows: Matrix, centroids: Matrix, compared: Matrix) -> Matrix:
    """Return what rows add to the centroids that they are nearest to, of those at the positions `compared`.

    The result has a row for each of these centroids, in order: its position, how many rows it has, and their sum.
    """
    nearest, _ = assign(rows, centroids[compared])
    sizes = np.bincount(nearest, minlength=len(compared))
    ordered, ends, found = rows[nearest.argsort(kind="stable")], sizes.cumsum(), np.flatnonzero(sizes)
    result = np.empty((len(found), 2 + rows.shape[1]), np.float64)
    result[:, 0], result[:, 1] = compared[found], sizes[found]
    for place, number in enumerate(found):
        np.add.reduce(ordered[ends[number] - sizes[number] : ends[number]], axis=0, out=result[place, 2:])
    return result


def move(centroids: Matrix, sums: Iterable[Matrix]) -> Matrix:
    """Return the centroids as means of their rows, by what `add_up` has returned; without rows, beside the largest.

    The same parts in the same order give the same means, however they are joined.
    """
    sizes, totals = np.zeros(len(centroids), np.int64), np.zeros(centroids.shape, np.float64)
    for part in sums:
        positions = part[:, 0].astype(np.int64)
        np.add.at(sizes, positions, part[:, 1].astype(np.int64))
        np.add.at(totals, positions, part[:, 2:])
    moved: Matrix = centroids.copy()
    moved[sizes > 0] = totals[sizes > 0] / sizes[sizes > 0, np.newaxis]
    _split_largest(moved, sizes)
    return moved


def _train_flat(rows: Matrix, count: int, seed: int, iterations: int) -> Matrix:
    """Return `count` centroids by Lloyd's steps from rows that were drawn by the seed."""
    chosen = np.random.default_rng(seed).choice(len(rows), count, replace=False)
    centroids: Matrix = rows[chosen].astype(np.float32)
    last = math.inf
    for _ in range(iterations):
        positions, error = assign(rows, centroids)
        sizes = np.bincount(positions, minlength=count)
        if count <= 1 << 16:
            positions = positions.astype(np.uint16)  # which numpy sorts by their digits
        ordered = rows[positions.argsort(kind="stable")]
        ends = sizes.cumsum()
        for number in np.flatnonzero(sizes):  # reduceat takes five times as long
            np.add.reduce(ordered[ends[number] - sizes[number] : ends[number]], axis=0, out=centroids[number])
        centroids /= np.maximum(sizes, 1)[:, None].astype(np.float32)
        _split_largest(centroids, sizes)
        if error >= last * (1 - _TOLERANCE):
            break
        last = error
    return centroids


def _split_largest(centroids: Matrix, sizes: Matrix) -> None:
    """Put each centroid that has no rows beside one of those that have most, which moves to the other side."""
    empty = np.flatnonzero(sizes == 0)
    largest = np.argsort(-sizes, kind="stable")[: len(empty)]
    empty = empty[: len(largest)]
    centroids[empty] = centroids[largest] * (1 + _SPLIT)
    centroids[largest] *= 1 - _SPLIT
