"""Namespaces share what the server keeps in memory: what one reads costs none other what is within an equal share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import ServiceUnavailableError
from tests.services.wire import stream

import tiltyard
from tiltyard.api import metrics
from tiltyard.model.branches import MAIN
from tiltyard.runtime.cache import IDLE_SECONDS, Kept, NoShareError, choose_dropped
from tiltyard.storage.vector_cache import searched_column

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIMENSION = 16
ROOM = 2_500_000


def kept(*entries: tuple[str, str, int], idle: str = "") -> list[Kept[str]]:
    now = time.monotonic()
    return [Kept(key, tenant, size, now - 2 * IDLE_SECONDS if key in idle else now) for key, tenant, size in entries]


def test_whoever_has_most_gives_way_least_recently_used_first() -> None:
    entries = kept(("a", "quiet", 30), ("b", "noisy", 20), ("c", "noisy", 20), ("d", "noisy", 20))
    assert choose_dropped(entries, 10, "noisy", 100) == []
    assert choose_dropped(entries, 30, "noisy", 100) == ["b"]
    assert choose_dropped(entries, 60, "noisy", 100) == ["b", "c", "d"]
    assert choose_dropped(entries, 30, "third", 100) == ["b"]
    assert choose_dropped(entries, 20, "quiet", 100) == ["b"]
    with pytest.raises(NoShareError):  # it would have 80, and only what has 30 could make room
        choose_dropped(entries, 80, "noisy", 100)


def test_what_nobody_has_used_for_long_is_no_share() -> None:
    entries = kept(("a", "quiet", 30), ("b", "noisy", 60), idle="a")
    assert choose_dropped(entries, 30, "noisy", 100) == ["a"]
    assert choose_dropped(entries, 90, "noisy", 100) == ["a", "b"]
    assert choose_dropped([], 100, "noisy", 100) == []


def test_all_are_one_tenant_where_none_is_known() -> None:
    entries = kept(("a", "", 50), ("b", "", 50))
    assert choose_dropped(entries, 60, "", 100) == ["a", "b"]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[tiltyard.Namespace]:
    settings = {"vector_cache_bytes": str(ROOM), "page_cache_bytes": str(ROOM)}
    with tiltyard.Namespace(str(tmp_path / "root"), jobs=0, **settings) as client:
        yield client


def create(catalog: tiltyard.Namespace, namespace: str, name: str, rows: int = 1500) -> None:
    values = np.random.default_rng(len(name)).normal(size=(rows, DIMENSION)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), DIMENSION)
    catalog.create_table({"id": [namespace, name]}, stream(pa.table({"id": range(rows), "vec": vectors})))
    dataset = lance.dataset(catalog._services.store.describe_table((namespace, name)).location)
    dataset.create_index("vec", "IVF_FLAT", metric="l2", num_partitions=2)


def search(catalog: tiltyard.Namespace, namespace: str, name: str) -> None:
    request: dict[str, Any] = {"id": [namespace, name], "vector": {"single_vector": [0.0] * DIMENSION}, "k": 3}
    for _ in range(searched_column.SEARCHES + 1):
        catalog.query_table(request)
    caches = catalog._services.storage.datasets
    caches.vector_cache.wait()
    catalog.query_table(request)
    caches.vector_cache.wait()


def shares(catalog: tiltyard.Namespace) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield what /metrics tells of caches by namespace."""
    services = catalog._services
    for family in metrics.State(services.store, dict, services.storage.datasets.shared_caches).collect():
        if family.name == "tiltyard_cache_bytes":
            yield from (((each.labels["name"], each.labels["namespace"]), each.value) for each in family.samples)


def test_searches_of_one_namespace_leave_the_index_of_another(
    catalog: tiltyard.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = catalog._services.storage.datasets.vector_cache
    for namespace in ("noisy", "quiet"):
        catalog.create_namespace({"id": [namespace]})
    create(catalog, "quiet", "t")
    search(catalog, "quiet", "t")
    own = cache.sizes_by_tenant()["quiet"]
    assert 0 < own < ROOM / 3
    for number in range(8):
        create(catalog, "noisy", f"t{number}")
        search(catalog, "noisy", f"t{number}")
        assert cache.size <= ROOM
    sizes = cache.sizes_by_tenant()
    assert sizes["quiet"] == own, "its index is there still"
    assert sizes["noisy"] > own, "what the other one has not used is there for all"
    held = {location for location, size in cache.sizes() if size}
    bytes_of = dict(shares(catalog))
    assert bytes_of["vectors in memory", "quiet"] == own and bytes_of["vectors in memory", "noisy"] == sizes["noisy"]
    monkeypatch.setattr(metrics, "MAX_SHARES", 1)
    bytes_of = dict(shares(catalog))
    assert ("vectors in memory", "quiet") not in bytes_of and bytes_of["vectors in memory", "$others"] == own
    assert any(location.endswith("t7.lance") or "t7" in location for location in held), "the last one was let in"


def test_rows_in_memory_are_shared_in_the_same_way(catalog: tiltyard.Namespace) -> None:
    caches = catalog._services.storage.datasets
    cache = caches.column_cache
    for namespace in ("noisy", "quiet"):
        catalog.create_namespace({"id": [namespace]})

    def load(namespace: str, name: str) -> None:
        create(catalog, namespace, name)
        location = catalog._services.store.describe_table((namespace, name)).location
        snapshot = caches.open_snapshot(location)
        cache.load((location, MAIN), snapshot.dataset, None)

    load("quiet", "t")
    own = cache.sizes_by_tenant()["quiet"]
    for number in range(20):
        load("noisy", f"t{number}")
    assert cache.sizes_by_tenant()["quiet"] == own
    assert own < cache.sizes_by_tenant()["noisy"] <= ROOM - own


def test_without_the_catalog_what_was_used_last_stays(
    catalog: tiltyard.Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.create_namespace({"id": ["quiet"]})
    create(catalog, "quiet", "t")
    search(catalog, "quiet", "t")
    datasets = catalog._services.storage.datasets

    def fail(locations: Any) -> Any:
        raise ServiceUnavailableError("away")

    datasets.share_out(fail)
    assert set(datasets.vector_cache.sizes_by_tenant()) == {""}
    assert "the catalog does not answer" in caplog.text
