"""Places that principals share: one leaves the last ones to those that have none."""

from __future__ import annotations

import pytest
from lance_namespace.errors import ThrottlingError

from tiltyard.runtime.budgets import FairPlaces


def test_principal_leaves_the_last_places_to_those_that_have_none() -> None:
    places = FairPlaces(8, "queries")
    for _ in range(6):
        places.take("ann")
    with pytest.raises(ThrottlingError, match="6 queries of yours"):
        places.take("ann")
    places.take("bob")
    with pytest.raises(ThrottlingError, match="of yours"):
        places.take("bob")
    places.take("cleo")
    with pytest.raises(ThrottlingError, match="8 queries run"):
        places.take("dora")
    places.leave("ann")
    with pytest.raises(ThrottlingError):
        places.take("ann")
    places.take("dora")
    assert places.taken == 8


@pytest.mark.parametrize(("places", "own"), [(1, 1), (2, 1), (3, 2), (4, 3), (16, 12)])
def test_principal_alone_has_all_places_but_the_reserved_ones(places: int, own: int) -> None:
    shared = FairPlaces(places, "queries")
    for _ in range(own):
        shared.take("ann")
    with pytest.raises(ThrottlingError):
        shared.take("ann")


def test_callers_whom_nothing_tells_apart_have_all_places() -> None:
    places = FairPlaces(4, "queries")
    for _ in range(4):
        places.take(None)
    with pytest.raises(ThrottlingError):
        places.take(None)
