"""What is removed for good: values of persons, files of no use any more, a table whose drop needs approval."""

from __future__ import annotations

from contextlib import suppress

import lance
import lance.fragment
import pyarrow as pa
from lance_namespace.errors import PermissionDeniedError

from tests.faults.sweep.installation import (
    Installation,
    create_table,
    insert,
    list_files,
    rows,
    unneeded_files,
    work_off,
)
from tests.faults.sweep.operation import Begin, SweptOperation
from tests.services.wire import stream
from tiltyard.model.principals import Principal

ERASED = "zq7-erased-value@example.org"
CAREFREE = {"gc_safety_days": 0.0}


def people(*ids: int) -> pa.Table:
    """Return rows of which one has the value that is to be erased."""
    return pa.table({"id": pa.array(ids, pa.int64()), "mail": [ERASED if each == 7 else f"{each}@x" for each in ids]})


def files_with_erased_value(installation: Installation) -> list[str]:
    return [path for path, read in list_files(installation.root).items() if ERASED.encode() in read()]


def prepare_erasure(installation: Installation) -> None:
    """A value in two versions, an index, a branch and a dropped table, and the request to erase it."""
    with installation.namespace(**CAREFREE) as namespace:
        namespace.call("CreateTable", {"id": ["t"]}, stream(people(*range(20))))
        namespace.call("DropTable", {"id": ["t"]})
        namespace.call("CreateTable", {"id": ["t"]}, stream(people(*range(20))))
        namespace.call("CreateTableBranch", {"id": ["t"], "name": "try"})
        namespace.call("InsertIntoTable", {"id": ["t"]}, stream(people(*range(20, 40))))
        namespace.call("CreateTableScalarIndex", {"id": ["t"], "column": "mail", "index_type": "BTREE"})
        work_off(namespace)
        namespace.call("EraseFromTable", {"id": ["t"], "predicate": "id = 7", "values_of": ["mail"]})
    assert files_with_erased_value(installation)


def run_queued(installation: Installation, begin: Begin = lambda: None) -> None:
    with installation.namespace(**CAREFREE) as namespace:
        begin()
        work_off(namespace)


def finish_erasure(installation: Installation) -> None:
    """The report says that it is complete, no file has the value, and no other row is lost."""
    installation.expire_leases()
    run_queued(installation)
    with installation.namespace(**CAREFREE) as namespace:
        [erasure] = namespace.call("ListErasures", {})["erasures"]
        assert erasure["outcome"] == "complete", namespace.call("DescribeErasure", {"erasure_id": erasure["id"]})
        assert namespace.count_table_rows({"id": ["t"]}).count == 39
    assert files_with_erased_value(installation) == []
    assert installation.ids("t") == [each for each in range(40) if each != 7]


def prepare_collection(installation: Installation) -> None:
    """A table with versions of no use any more, deleted rows, two builds of an index, and files that none refers to."""
    with installation.namespace(**CAREFREE) as namespace:
        create_table(namespace, ["t"], 1, 2, 3)
        index = {"id": ["t"], "column": "id", "index_type": "BTREE", "replace": True}
        for _ in range(2):
            namespace.call("CreateTableScalarIndex", index)
            work_off(namespace)
            insert(namespace, ["t"], 4)
            namespace.call("DeleteFromTable", {"id": ["t"], "predicate": "id = 4"})
        [(location,)] = installation.sql("SELECT location FROM tables")
        lance.fragment.write_fragments(rows(9), location, mode="append")
        namespace.call("CollectTableGarbage", {"id": ["t"], "keep_versions_days": 0.0})
    assert list(unneeded_files(location))


def finish_collection(installation: Installation) -> None:
    """What is needed is there, and nothing else."""
    installation.expire_leases()
    run_queued(installation)
    with installation.namespace(**CAREFREE) as namespace:
        assert namespace.count_table_rows({"id": ["t"]}).count == 3
        [(location,)] = installation.sql("SELECT location FROM tables")
        assert not (unneeded := list(unneeded_files(location))), unneeded
        assert len(lance.dataset(location).versions()) == 1
        insert(namespace, ["t"], 5)
    assert installation.ids("t") == [1, 2, 3, 5]


KEPT = {"retention_days": 1.0}
ANN, BOB = (Principal(name, (), "test") for name in ("ann", "bob"))


def prepare_approved_drop(installation: Installation) -> None:
    """A table that ann may drop with the approval of another principal, and that of bob."""
    with installation.namespace() as namespace:
        namespace.call("CreateNamespace", {"id": ["s"]})
        create_table(namespace, ["s", "t"], 1)
        for grantee, privileges in {"ann": ["use", "read", "drop", "manage_grants"], "bob": ["use", "approve"]}.items():
            grant = {"object_kind": "namespace", "id": ["s"], "grantee": grantee}
            namespace.call("GrantPrivileges", {**grant, "privileges": privileges})
        protection = {"object_kind": "table", "id": ["s", "t"], "kind": "approval", "operations": ["DropTable"]}
        namespace.call("SetProtection", protection)
    approve_drop(installation)


def approve_drop(installation: Installation) -> None:
    """Have ann ask for the approval of her call, and bob give it."""
    with suppress(PermissionDeniedError):
        drop_approved(installation)
    with installation.namespace(principal=BOB) as namespace:
        [waits] = [each for each in namespace.call("ListApprovals", {})["approvals"] if each["status"] == "requested"]
        namespace.call("DecideApproval", {"approval_id": waits["id"], "approved": True})


def drop_approved(installation: Installation, begin: Begin = lambda: None) -> None:
    with installation.namespace(principal=ANN, **KEPT) as namespace:
        begin()
        namespace.call("DropTable", {"id": ["s", "t"]})


def finish_approved_drop(installation: Installation) -> None:
    """The table was dropped and its approval used, or it is there, and can be dropped with an approval: once."""
    is_there = installation.sql("SELECT name FROM tables") == [("t",)]
    [(used_at,)] = installation.sql("SELECT used_at FROM approvals")
    assert is_there or used_at is not None
    if is_there:
        if used_at is not None:
            approve_drop(installation)
        drop_approved(installation)
    assert installation.sql("SELECT name FROM tables") == []
    assert installation.sql("SELECT COUNT(*) FROM approvals WHERE used_at IS NULL") == [(0,)]
    with installation.namespace(**KEPT) as namespace:
        namespace.call("UndropTable", {"id": ["s", "t"]})
        assert namespace.count_table_rows({"id": ["s", "t"]}).count == 1
    try:
        drop_approved(installation)
    except PermissionDeniedError:
        return
    raise AssertionError("an approval was used twice")


REMOVALS: dict[str, SweptOperation] = {
    "erasure": SweptOperation(prepare_erasure, run_queued, finish_erasure),
    "collection": SweptOperation(prepare_collection, run_queued, finish_collection),
    "approved-drop": SweptOperation(prepare_approved_drop, drop_approved, finish_approved_drop),
}
