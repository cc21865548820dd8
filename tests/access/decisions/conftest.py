"""One service for each module's tests, which begin with one that allows everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.access.decisions.service import Service, decision_service


@pytest.fixture(scope="module")
def running_service() -> Iterator[Service]:
    with decision_service() as service:
        yield service


@pytest.fixture
def service(running_service: Service) -> Service:
    running_service.reset()
    return running_service
