"""Functions, their secrets and the rows that they failed on."""

from __future__ import annotations

import pytest
from lance_namespace.errors import ConcurrentModificationError, NamespaceNotEmptyError, NamespaceNotFoundError

from tiltyard.model.settings.secret_keys import EncryptedValue
from tiltyard.store import FragmentErrors, FunctionUse, NewFunction, Store
from tiltyard.store.repository import ROOT

FIRST, SECOND = EncryptedValue("one", b"\0first"), EncryptedValue("two", b"\xffsecond")


def new(digest: str, artifact: str = "/root/_functions/a") -> NewFunction:
    return NewFunction("{}", digest, artifact, "ann")


def test_secrets_are_added_once_altered_listed_and_dropped(store: Store) -> None:
    assert store.add_secret(ROOT, "a", FIRST) and not store.add_secret(ROOT, "a", SECOND)
    assert store.add_secret(ROOT, "b", SECOND)
    assert store.list_secrets(ROOT, None, 10) == ["a", "b"] and store.list_secrets(ROOT, "a", 10) == ["b"]
    record = store.describe_secret(ROOT, "a")
    assert record is not None and record.value == FIRST
    assert store.alter_secret(ROOT, "a", SECOND) and not store.alter_secret(ROOT, "none", SECOND)
    assert store.drop_secret(ROOT, "b") and not store.drop_secret(ROOT, "b")
    with pytest.raises(NamespaceNotFoundError):
        store.add_secret(999_999, "a", FIRST)


def test_secrets_of_other_keys_are_encrypted_again(store: Store) -> None:
    for number in range(250):
        store.add_secret(ROOT, f"s{number}", FIRST if number % 2 else SECOND)
    assert store.reencrypt_secrets("two", lambda record: SECOND) == 125
    assert store.reencrypt_secrets("two", lambda record: SECOND) == 0


def test_versions_of_a_function_are_numbered_found_listed_and_dropped(store: Store) -> None:
    first, second = store.add_function(ROOT, "f", new("1")), store.add_function(ROOT, "f", new("2"))
    assert (first.version, second.version, store.add_function(ROOT, "f", new("1")).version) == (1, 2, 1)
    other = store.add_function(ROOT, "g", new("1", "/root/_functions/b"))
    assert [(r.name, r.version) for r in store.list_functions(ROOT, None, 10)] == [("f", 1), ("f", 2), ("g", 1)]
    assert [(r.name, r.version) for r in store.list_functions(ROOT, ("f", 1), 1)] == [("f", 2)]
    assert store.find_function(ROOT, "f", None) == second and store.find_function(ROOT, "f", 1) == first
    assert store.find_pinned_function(other.object_id, 1) == other
    assert store.drop_function(first.object_id, 2, 0)
    assert store.add_function(ROOT, "f", new("2")).version == 3
    assert store.claim_due_deletions(10, 1000) == []  # the other versions have the source
    assert store.drop_function(first.object_id, None, 0) and not store.drop_function(first.object_id, None, 0)
    assert [deletion.location for deletion in store.claim_due_deletions(10, 60_000)] == ["/root/_functions/a"]
    with pytest.raises(ConcurrentModificationError):
        store.add_function(ROOT, "f", new("1"))
    store.complete_deletion("/root/_functions/a")
    assert store.add_function(ROOT, "f", new("1")).version == 1


def test_registering_a_source_again_cancels_its_deletion(store: Store) -> None:
    record = store.add_function(ROOT, "f", new("1"))
    assert store.drop_function(record.object_id, None, 0)
    store.add_function(ROOT, "f", new("1"))
    assert store.claim_due_deletions(10, 1000) == []


def test_uses_of_a_function_are_recorded_until_they_are_removed(store: Store) -> None:
    record = store.add_function(ROOT, "f", new("1"))
    use = FunctionUse(1, 7, "", "c")
    for _ in range(2):
        store.add_function_use(record.object_id, use)
    assert store.function_uses(record.object_id, None, 10) == store.function_uses(record.object_id, 1, 10) == [use]
    assert store.function_uses(record.object_id, 2, 10) == []
    store.remove_function_use(record.object_id, use)
    assert store.function_uses(record.object_id, None, 10) == []


def test_namespace_with_a_function_is_dropped_with_it_by_cascade_alone(store: Store) -> None:
    namespace = store.create_namespace(("n",), {})
    store.add_function(namespace.id, "f", new("1"))
    with pytest.raises(NamespaceNotEmptyError):
        store.drop_namespace(("n",))
    store.drop_namespace(("n",), cascade=True)
    assert store.find_function(namespace.id, "f", None) is None


def test_errors_of_a_job_are_saved_by_its_owner_and_listed_by_fragment(store: Store) -> None:
    job = store.create_transaction("backfill", None, {}, {})
    assert store.claim_job(job.id, "owner", 60_000) is not None
    assert store.holds_lease(job.id, "owner") and not store.holds_lease(job.id, "other")

    def errors(fragment: int, recorded: int) -> FragmentErrors:
        return FragmentErrors(job.id, 7, fragment, "c", 5, recorded, "[1]")

    assert store.save_fragment_errors("owner", errors(1, 2), 3)
    assert store.save_fragment_errors("owner", errors(1, 3), 3)  # in the place of those before
    assert not store.save_fragment_errors("owner", errors(2, 1), 3)
    listed = store.list_fragment_errors(7, None, None, 10)
    assert [(e.fragment_id, e.rows_skipped, e.rows_recorded, e.records) for e in listed] == [
        (1, 5, 3, "[1]"),
        (2, 5, 0, "[]"),
    ]
    assert store.list_fragment_errors(7, job.id, "c", 1) == listed[:1]
    assert store.list_fragment_errors(7, "none", None, 10) == store.list_fragment_errors(8, None, None, 10) == []
    with pytest.raises(ConcurrentModificationError):
        store.save_fragment_errors("other", errors(3, 0), 3)
