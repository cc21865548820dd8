"""The registry of operations: what may not be there, is not started with."""

from __future__ import annotations

from typing import Any

import pytest

from tiltyard.bootstrap import register_operations
from tiltyard.model import operations
from tiltyard.model.operations import Needs, UndeclaredNeedsError, UnknownOperationError, bound_operations, operation

ANYTHING = Needs("nothing", lambda ctx, request: ctx)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of its own."""
    register_operations()
    monkeypatch.setattr(operations, "_served", dict(operations._served))


def test_every_operation_says_what_it_needs() -> None:
    register_operations()
    texts = {name: served.needs.text for name, (_, served) in bound_operations().items() if served and served.needs}
    assert set(texts) == {name for name, (_, served) in bound_operations().items() if served}
    assert all(texts.values())


def test_operation_that_declares_no_needs_refuses_the_start(registry: None) -> None:
    del operations._served["query_table"]

    @operation
    def query_table(ctx: Any, request: Any) -> None: ...

    with pytest.raises(UndeclaredNeedsError, match="query_table"):
        bound_operations()


def test_operation_that_the_specification_does_not_know_refuses_the_start(registry: None) -> None:
    @operation(needs=ANYTHING)
    def fly_to_the_moon(ctx: Any, request: Any) -> None: ...

    with pytest.raises(UnknownOperationError, match="fly_to_the_moon"):
        bound_operations()


def test_two_functions_of_one_operation_are_refused(registry: None) -> None:
    with pytest.raises(UnknownOperationError, match="query_table"):

        @operation(needs=ANYTHING)
        def query_table(ctx: Any, request: Any) -> None: ...
