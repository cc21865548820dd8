"""Erasures are refused to who may not do all that they do, and their reports are hidden from who may not erase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import (
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TransactionNotFoundError,
)

if TYPE_CHECKING:
    from tests.access.conftest import Catalog

ERASE: dict[str, Any] = {"id": ["s", "t"], "predicate": "id = 1"}
NEEDED = ("read", "write", "alter", "drop")


def error_of(catalog: Catalog, caller: str, operation: str, **fields: Any) -> LanceNamespaceError:
    with pytest.raises(LanceNamespaceError) as caught:
        catalog.as_(caller).call(operation, fields)
    return caught.value


def test_an_erasure_needs_all_four_privileges_and_clones_need_them_too(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.namespace("other")
    catalog.table("s", "t")
    for missing in NEEDED:
        catalog.grant(f"no-{missing}", ",".join({"use", *NEEDED} - {missing}), table=("s", "t"))
        error = error_of(catalog, f"no-{missing}", "EraseFromTable", **{**ERASE, "predicate": "no = such"})
        assert isinstance(error, PermissionDeniedError) and missing in str(error)
    assert isinstance(error_of(catalog, "eve", "EraseFromTable", **ERASE), NamespaceNotFoundError)
    catalog.grant("ann", ",".join(NEEDED), table=("s", "t"))
    location = catalog.owner.call("DescribeTable", {"id": ["s", "t"]}).location
    catalog.owner.call("CloneTable", {"id": ["other", "copy"], "source_location": location})
    hidden = error_of(catalog, "ann", "EraseFromTable", **ERASE)
    assert isinstance(hidden, PermissionDeniedError) and "copy" not in str(hidden)
    catalog.grant("ann", ",".join(NEEDED), namespace=("other",))
    queued = catalog.as_("ann").call("EraseFromTable", ERASE)["erasure_id"]
    assert [each["id"] for each in catalog.as_("ann").call("ListErasures", {})["erasures"]] == [queued]
    assert catalog.as_("eve").call("ListErasures", {})["erasures"] == []
    assert isinstance(error_of(catalog, "eve", "DescribeErasure", erasure_id=queued), TransactionNotFoundError)
    assert "already" in str(error_of(catalog, "ann", "EraseFromTable", **ERASE))  # one at a time


def test_an_erasure_can_need_the_approval_of_a_second_principal(catalog: Catalog) -> None:
    catalog.namespace("s")
    catalog.table("s", "t")
    catalog.grant("ann", ",".join(NEEDED), table=("s", "t"))
    protected = {"object_kind": "table", "id": ["s", "t"], "kind": "approval", "operations": ["EraseFromTable"]}
    catalog.owner.call("SetProtection", protected)
    catalog.refresh_rights()
    assert "approval" in str(error_of(catalog, "ann", "EraseFromTable", **ERASE))
    assert catalog.as_("ann").call("ListErasures", {})["erasures"] == []
