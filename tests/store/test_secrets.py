"""Secrets that servers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiltyard.store import Store


def test_secret_is_made_once_and_differs_by_name(store: Store) -> None:
    first = store.shared_secret("paging")
    assert len(first) == 32
    assert store.shared_secret("paging") == first
    assert store.shared_secret("other") != first
