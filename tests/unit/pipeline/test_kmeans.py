"""k-means of the pipeline: the same centroids each time, as many as wanted, and no worse than Lance's own."""

from __future__ import annotations

import lance
import numpy as np
import pytest

from tiltyard.pipeline.indexes import kmeans


def clustered(rows: int, dimension: int, clusters: int, seed: int = 0) -> np.ndarray:
    """Vectors around some centres, as float32."""
    source = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(clusters, dimension))
    noise = source.normal(size=(rows, dimension))
    return (centres[source.integers(0, clusters, rows)] + noise * 0.2).astype(np.float32)


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([10, 30, 60], 10, [1, 3, 6]),
        ([1, 1, 98], 10, [1, 1, 8]),
        ([0, 5, 5], 4, [0, 2, 2]),
        ([2, 2, 2], 6, [2, 2, 2]),
        ([1, 100], 100, [1, 99]),
        ([1, 1, 1, 7], 3, [0, 1, 1, 1]),
        ([5], 0, [0]),
        ([], 0, []),
    ],
)
def test_shares_add_up_and_exceed_no_cluster(sizes: list[int], count: int, expected: list[int]) -> None:
    shares = kmeans.shares(sizes, count)
    assert sum(shares) == count
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    assert shares == expected


def test_shares_of_any_sizes_add_up() -> None:
    source = np.random.default_rng(3)
    for _ in range(200):
        sizes = source.integers(0, 40, source.integers(1, 30))
        count = int(source.integers(0, sizes.sum() + 1))
        shares = kmeans.shares(sizes, count)
        assert (sum(shares), all(shares <= sizes)) == (count, True), (sizes, count)


def test_rows_are_assigned_to_their_nearest_centroid() -> None:
    rows, centroids = clustered(3000, 8, 20), clustered(50, 8, 20, seed=1)
    distances = ((rows[:, None] - centroids[None]) ** 2).sum(axis=2)
    positions, error = kmeans.assign(rows, centroids)
    assert (distances[np.arange(len(rows)), positions] <= distances.min(axis=1) + 1e-4).all()
    assert error == pytest.approx(distances.min(axis=1).mean(), rel=1e-4)


@pytest.mark.parametrize("count", [1, 64, 700])
def test_the_same_seed_gives_the_same_centroids(count: int) -> None:
    rows = clustered(4000, 8, 30)
    first, again, other = (kmeans.train(rows, count, seed, 20) for seed in (5, 5, 6))
    assert first.shape == (count, 8)
    assert np.array_equal(first, again)
    assert count == 1 or not np.array_equal(first, other)


@pytest.mark.parametrize("count", [64, 700])
def test_the_error_is_about_that_of_lance_or_less(count: int) -> None:
    rows, others = clustered(20_000, 32, 2000), clustered(5000, 32, 2000, seed=2)
    theirs = lance.util.KMeans(count, max_iters=kmeans.ITERATIONS)
    theirs.fit(rows)
    assert theirs.centroids is not None
    alone = theirs.centroids.storage.flatten().to_numpy().reshape(count, 32)
    error = kmeans.assign(others, kmeans.train(rows, count, 0, kmeans.ITERATIONS))[1]
    assert error <= 1.05 * kmeans.assign(others, alone)[1]


def test_rows_that_are_the_same_give_finite_centroids() -> None:
    rows = np.repeat(clustered(3, 4, 3), 200, axis=0)
    centroids = kmeans.train(rows, 50, 0, 10)
    assert np.isfinite(centroids).all()
    assert kmeans.assign(rows, centroids)[1] == pytest.approx(0, abs=1e-4)
    assert np.isfinite(kmeans.train(np.zeros((600, 4), np.float32), 550, 0, 5)).all()
