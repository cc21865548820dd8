"""Training sets under grants and policies: who is bound sees none, and has what the policies show in one of a query."""

from __future__ import annotations

import httpx
import pytest
from lance_namespace.errors import PermissionDeniedError, TableTagNotFoundError

import tiltyard
from tests.services.secured import Secured


def test_who_is_bound_by_a_policy_has_no_set_but_one_of_a_query(secured: Secured, admin: httpx.Client) -> None:
    lakes = {
        name: tiltyard.connect(secured.url, api_key=secured.keys[name]) for name in ("administrator", "tess", "ann")
    }
    owner, tess, ann = lakes.values()
    made = owner.training_set("hr.everybody", "hr.people", by="id", columns=["id", "ssn"])
    assert tess.training_set("hr.everybody").verify() == made.digest  # exempt, as an auditor
    assert len(tess.training_set("hr.everybody").to_arrow("train")) == 4

    assert ann.training_sets() == []
    with pytest.raises(TableTagNotFoundError):
        ann.training_set("hr.everybody")
    with pytest.raises(PermissionDeniedError):
        ann.training_set("hr.everybody", "hr.people", by="id", columns=["id", "ssn"])
    with pytest.raises(PermissionDeniedError):
        ann.training_set("hr.mine", "hr.people", by="id")
    assert "hr.mine" not in ann.namespace("hr").tables()
    with pytest.raises(PermissionDeniedError):  # nor by what the set's table says of the rows
        ann.table("hr.people").dataset(version=made.source.version)

    own = ann.training_set("hr.mine", query="SELECT id, ssn FROM hr.people", by="id")
    assert own.to_arrow("train").to_pydict() == {"id": [1, 2], "ssn": ["***1", "***2"]}
    own.drop()
    made.drop()
