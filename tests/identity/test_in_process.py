"""The catalog in process: without authentication, as the principal that its opener names."""

from __future__ import annotations

from pathlib import Path

import lance_namespace
import pytest
from lance_namespace.errors import PermissionDeniedError, UnauthenticatedError

import tiltyard
from tests.services.secured import make_keys
from tiltyard.identity.keys import alter_principal
from tiltyard.store import open_store


def test_namespace_without_a_principal_may_do_everything(tmp_path: Path) -> None:
    with tiltyard.Namespace(str(tmp_path), jobs=0) as namespace:
        assert namespace.call("ListPrincipals", {}) is not None


def test_namespace_acts_as_the_named_principal(tmp_path: Path) -> None:
    make_keys(f"sqlite:///{tmp_path}/catalog.db", "administrator", "ann")
    properties = {"root": str(tmp_path), "jobs": "0"}
    ann = lance_namespace.connect("tiltyard", {**properties, "principal": "ann"})
    unprivileged = lance_namespace.connect("tiltyard", {**properties, "principal": "nobody"})
    for lesser in (ann, unprivileged):
        with pytest.raises(PermissionDeniedError):
            lesser.call("ListPrincipals", {})
        lesser.close()
    administrator = lance_namespace.connect("tiltyard", {**properties, "principal": "administrator"})
    administrator.call("ListPrincipals", {})
    administrator.close()


def test_namespace_of_a_disabled_principal_is_refused(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/catalog.db") as store:
        alter_principal(store, "ann", None, True)
    with pytest.raises(UnauthenticatedError, match="disabled"):
        tiltyard.Namespace(str(tmp_path), jobs=0, principal="ann")


def test_transaction_records_who_requested_it(tmp_path: Path) -> None:
    make_keys(f"sqlite:///{tmp_path}/catalog.db", "administrator")
    with tiltyard.Namespace(str(tmp_path), jobs=0, principal="administrator") as namespace:
        queued = namespace.call("CollectGarbage", {})["transaction_id"]
    with open_store(f"sqlite:///{tmp_path}/catalog.db") as store:
        assert store.describe_transaction(queued).requested_by == "administrator"
