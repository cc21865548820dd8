"""Every operation through the generated client, the Rust client and plain HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from lance_namespace import AlterTransactionResponse
from lance_namespace.errors import InvalidInputError

from tiltyard.model.spec import operations
from tiltyard_conformance.cases import Case, World
from tiltyard_conformance.cases_of_jobs import CASES
from tiltyard_conformance.clients import NoSuchCallError, call_generated, call_http, call_rust, call_twin


@pytest.fixture
def world(raw: Any, server: Any) -> World:
    return World(raw, server.options)


def test_cases_cover_every_operation_of_the_contract() -> None:
    assert {case.operation for case in CASES} >= {name for name, facts in operations().items() if facts.in_contract}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.operation)
def test_operation_through_the_generated_client(world: World, generated: Any, case: Case) -> None:
    fields = case.prepare(world)
    try:
        response = call_generated(generated, case, fields)
    except NoSuchCallError:
        assert case.operation == "CreateEmptyTable"
        return
    case.check(world, fields, response)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.operation)
def test_operation_by_plain_http(world: World, raw: Any, case: Case) -> None:
    fields = case.prepare(world)
    case.check(world, fields, call_http(raw.http, case, fields))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.operation)
def test_operation_through_the_twin_in_process(world: World, twin: Any, case: Case) -> None:
    fields = case.prepare(world)
    case.check(world, fields, call_twin(twin, case, fields))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.operation)
def test_operation_through_the_rust_client(world: World, rest: Any, case: Case) -> None:
    fields = case.prepare(world)
    if case.operation == "AlterTransaction":
        # Its wrapper passes Python's names of actions, of which the Rust code sends {"actions": [{}]}: it is told so.
        with pytest.raises(InvalidInputError, match="exactly one thing"):
            call_rust(rest, case, fields)
        response = AlterTransactionResponse.from_dict(rest._inner.alter_transaction(fields))
        case.check(world, fields, response)
        return
    try:
        response = call_rust(rest, case, fields)
    except NoSuchCallError:
        return
    case.check(world, fields, response)
