"""Vectors in two dimensions: their principal components, in numpy, or UMAP where that package is installed."""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

ITERATIONS = 16
EXTRA = 8
"""Directions that are followed beside the two, so that these come out soon."""
SEED = 1
GRID = 10_000
"""Coordinates are whole numbers from 0 to this."""

Array = npt.NDArray[np.float64]
_one_at_a_time = threading.Lock()
"""UMAP takes all processors for as long as it runs."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Points in two dimensions, shape (n, 2); `shares` are those of the variance on both axes, for components alone."""

    points: Array
    shares: tuple[float, float] | None


@cache
def has_umap() -> bool:
    """Whether the package umap-learn is installed with this server."""
    return importlib.util.find_spec("umap") is not None


def principal_components(vectors: npt.NDArray[np.float32]) -> Projection:
    """Project vectors, shape (n, d), onto the two directions in which they differ most.

    By iteration of a subspace from a fixed start: n·d·20 multiplications a turn, and the same map each time. The sign
    of a direction is the one that makes its largest part positive.
    """
    centered = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    number = min(2 + EXTRA, *centered.shape)
    directions = np.random.default_rng(SEED).normal(size=(centered.shape[1], number))
    for _ in range(ITERATIONS):
        directions, _ = np.linalg.qr(centered.T @ (centered @ directions))
    _, values, rotation = np.linalg.svd(centered @ directions, full_matrices=False)
    axes = directions @ rotation[:2].T
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    points = centered @ axes
    if points.shape[1] < 2:
        points = np.hstack([points, np.zeros((len(points), 2 - points.shape[1]))])
    total = float((centered**2).sum())
    shares = [float(value**2) / total if total > 0 else 0.0 for value in (*values[:2], 0.0, 0.0)[:2]]
    return Projection(points, (shares[0], shares[1]))


def neighbour_embedding(vectors: npt.NDArray[np.float32]) -> Projection:
    """Project vectors so that neighbours stay neighbours, by UMAP. Takes seconds; one at a time in a process."""
    from umap import UMAP  # noqa: PLC0415  # its import takes seconds, and it need not be installed

    with _one_at_a_time:
        points = UMAP(n_components=2, n_neighbors=min(15, len(vectors) - 1), random_state=SEED).fit_transform(vectors)
    return Projection(np.asarray(points, dtype=np.float64), None)


def to_grid(points: Array) -> tuple[list[int], list[int]]:
    """Return x and y as whole numbers up to GRID, on the same scale, in the middle of the square."""
    if not len(points):
        return [], []
    low, high = points.min(axis=0), points.max(axis=0)
    extent = float((high - low).max()) or 1.0
    scaled = ((points - (low + high) / 2) / extent + 0.5) * GRID
    whole = np.clip(np.rint(scaled), 0, GRID).astype(np.int64)
    return whole[:, 0].tolist(), whole[:, 1].tolist()
