"""k-means of the pipeline: the same centroids each time, as many as wanted, and no worse than Lance's own."""

from __future__ import annotations

import lance
import numpy as np
import pytest

from tiltyard.pipeline.indexes import kmeans
from tiltyard.pipeline.indexes.training import REFINEMENTS


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


def hierarchical(rows: np.ndarray, count: int) -> tuple[np.ndarray, list[tuple[int, int, np.ndarray]]]:
    """Centroids by coarse cluster, as tasks train them; of each its first centroid, how many it has, and its rows."""
    coarse = kmeans.train_coarse(rows, count, 1, kmeans.ITERATIONS)
    positions, _ = kmeans.assign(rows, coarse)
    shares = kmeans.shares(np.bincount(positions, minlength=len(coarse)), count)
    members = [rows[positions == number] for number in range(len(coarse))]
    each = enumerate(zip(members, shares, strict=True))
    centroids = [kmeans.train(own, share, 1 + number, kmeans.ITERATIONS) for number, (own, share) in each]
    firsts = np.cumsum(shares) - shares
    return np.concatenate(centroids), list(zip(firsts.tolist(), shares, members, strict=True))


def recall(centroids: np.ndarray, rows: np.ndarray, queries: np.ndarray, probes: int) -> float:
    """The share of the ten nearest rows that are in the `probes` nearest partitions."""
    nearest = (((rows**2).sum(axis=1)) - 2 * queries @ rows.T).argpartition(10, axis=1)[:, :10]
    partitions = (((centroids**2).sum(axis=1)) - 2 * queries @ centroids.T).argsort(axis=1)[:, :probes]
    of_nearest = kmeans.assign(rows, centroids)[0][nearest]
    return float(np.mean([np.isin(found, read).mean() for found, read in zip(of_nearest, partitions, strict=True)]))


@pytest.mark.parametrize("compared", [96, 256])
@pytest.mark.parametrize("clusters", [0, 2000])
def test_steps_of_all_centroids_find_what_lance_finds(
    monkeypatch: pytest.MonkeyPatch, clusters: int, compared: int
) -> None:
    """Of clustered and of even vectors; without the steps, recall is lower by .01 or more."""
    monkeypatch.setattr(kmeans, "MAX_COMPARED_CENTROIDS", compared)

    def vectors(count: int, seed: int) -> np.ndarray:
        source = np.random.default_rng(seed)
        centres = np.random.default_rng(99).normal(size=(max(clusters, 1), 16))
        spread = source.normal(size=(count, 16)) * 0.5 if clusters else source.random((count, 16))
        return (centres[source.integers(0, len(centres), count)] + spread).astype(np.float32)

    rows, queries = vectors(24_000, 1), vectors(600, 2)
    theirs = lance.util.KMeans(300, max_iters=kmeans.ITERATIONS)
    theirs.fit(rows)
    assert theirs.centroids is not None
    alone = theirs.centroids.storage.flatten().to_numpy().reshape(300, 16)
    centroids, members = hierarchical(rows, 300)
    trained = recall(centroids, rows, queries, 8)
    for _ in range(REFINEMENTS):
        parts = [
            kmeans.add_up(each, centroids, kmeans.choose_compared(centroids, first, count))
            for first, count, each in members
        ]
        before, centroids = kmeans.assign(rows, centroids)[1], kmeans.move(centroids, parts)
        assert kmeans.assign(rows, centroids)[1] < before
    refined = recall(centroids, rows, queries, 8)
    assert refined >= trained + 0.01
    assert refined >= recall(alone, rows, queries, 8) - 0.005


def test_sums_of_rows_move_centroids_to_their_means_however_they_are_joined() -> None:
    rows, centroids = clustered(3000, 8, 40), clustered(60, 8, 40, seed=1)
    centroids[7] = 1000.0  # no row is nearest to it
    parts = [kmeans.add_up(part, centroids, np.arange(60)) for part in np.array_split(rows, 6)]
    moved = kmeans.move(centroids, parts)
    assert np.array_equal(moved, kmeans.move(centroids, [np.concatenate(parts[:4]), np.concatenate(parts[4:])]))
    positions, _ = kmeans.assign(rows, centroids)
    sizes = np.bincount(positions, minlength=60)
    empty, by_size = np.flatnonzero(sizes == 0), np.argsort(-sizes, kind="stable")
    assert 7 in empty
    for number in by_size[len(empty) : -len(empty)]:
        assert np.allclose(moved[number], rows[positions == number].mean(axis=0), atol=1e-5)
    for number, largest in zip(empty, by_size, strict=False):
        assert np.allclose(moved[number], rows[positions == largest].mean(axis=0), rtol=0.01, atol=1e-3)


def test_centroids_compared_are_the_nearest_to_those_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "MAX_COMPARED_CENTROIDS", 20)
    centroids = clustered(100, 8, 100)
    distances = ((centroids[:, None] - centroids[None, 30:36]) ** 2).sum(axis=2).min(axis=1)
    assert kmeans.choose_compared(centroids, 30, 6).tolist() == sorted(distances.argsort()[:20].tolist())
    assert kmeans.choose_compared(centroids, 30, 25).tolist() == list(range(30, 55))
    assert kmeans.choose_compared(centroids[:20], 3, 2).tolist() == list(range(20))
