"""The points of a map: vectors in two dimensions by principal components or UMAP, and their colours by a column."""

from __future__ import annotations

import importlib.util
import math
import threading
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tiltyard.console.templates import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

ITERATIONS = 16
EXTRA = 8
"""Directions that are followed beside the two, so that these come out soon."""
SEED = 1
GRID = 10_000
"""Coordinates are whole numbers from 0 to this."""

MAX_VALUES = 7
"""Values with a colour of their own; all others share one."""
STEPS = 5
MAX_LABEL = 40
OTHERS = "c7"

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


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of the legend: the name of its colour in the style sheet, what it stands for, and how many points."""

    color: str
    label: str
    count: int


@dataclass(frozen=True, slots=True)
class Coloring:
    """The legend, and each point's entry in it."""

    keys: Sequence[LegendEntry]
    codes: Sequence[int]


def color_by(values: Sequence[Any], kind: str) -> Coloring:
    """Colour points by their values of a column; numbers of more than MAX_VALUES kinds are in STEPS stretches."""
    if kind == "number" and len({value for value in values if _is_finite(value)}) > MAX_VALUES:
        return _by_range(values)
    return _by_value(values)


def _is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _by_range(values: Sequence[Any]) -> Coloring:
    numbers = [float(value) for value in values if _is_finite(value)]
    low, high = min(numbers), max(numbers)
    width = (high - low) / STEPS
    codes = [
        min(STEPS - 1, int((float(value) - low) / width)) if _is_finite(value) and width > 0 else STEPS
        for value in values
    ]
    counts = Counter(codes)
    labels = [f"{low + step * width:.4g} to {low + (step + 1) * width:.4g}" for step in range(STEPS)]
    keys = [LegendEntry(f"r{step}", label, counts[step]) for step, label in enumerate(labels)]
    if counts[STEPS]:
        keys.append(LegendEntry(OTHERS, "none", counts[STEPS]))
    return Coloring(keys, codes)


def _by_value(values: Sequence[Any]) -> Coloring:
    texts = ["null" if value is None else plain(value, MAX_LABEL) for value in values]
    counts = Counter(texts)
    frequent = [text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][: MAX_VALUES + 1]
    if len(counts) > MAX_VALUES:
        frequent = frequent[:MAX_VALUES]
    keys = [LegendEntry(f"c{index}", text, counts[text]) for index, text in enumerate(frequent)]
    rest = len(texts) - sum(key.count for key in keys)
    if rest:
        keys.append(LegendEntry(OTHERS, f"{len(counts) - len(frequent):,} others", rest))
    codes = {text: index for index, text in enumerate(frequent)}
    return Coloring(keys, [codes.get(text, len(frequent)) for text in texts])
