"""What every mounted catalog does, whatever is behind it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from lance_namespace.errors import (
    ErrorCode,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tests.mounts.backends import Backend, new_name, new_namespace
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, MountedTable, NamePage


def needs(backend: Backend, *methods: str) -> None:
    """Skip a test of what the backend cannot do; another test checks how it says so."""
    if missing := backend.unsupported.intersection(methods):
        pytest.skip(f"{backend.kind} has no {min(missing)}")


def all_pages(fetch: Callable[[str | None], NamePage]) -> list[NamePage]:
    pages = [fetch(None)]
    while (token := pages[-1].next_token) is not None:
        assert len(pages) < 20, "pages repeat"
        pages.append(fetch(token))
    return pages


def declare(catalog: MountedCatalog, namespace: Id, name: str | None = None) -> MountedTable:
    return catalog.declare_table(Id((*namespace, name or new_name("t"))), None, {})


# Namespaces


def test_create_namespace_gives_it_back_in_a_list_and_by_name(backend: Backend, catalog: MountedCatalog) -> None:
    needs(backend, "create_namespace")
    name = new_name("ns")
    catalog.create_namespace(Id((*backend.outer, name)), {"owner": "ada"})
    assert name in catalog.list_namespaces(backend.outer).names
    assert catalog.get_namespace(Id((*backend.outer, name)))["owner"] == "ada"
    assert catalog.list_namespaces(Id((*backend.outer, name))).names == ()
    assert catalog.list_tables(Id((*backend.outer, name))).names == ()


def test_create_namespace_twice_is_code_2(backend: Backend, catalog: MountedCatalog) -> None:
    needs(backend, "create_namespace")
    name = new_name("ns")
    catalog.create_namespace(Id((*backend.outer, name)), {"owner": "ada"})
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(Id((*backend.outer, name)), {"owner": "bob"})
    assert catalog.get_namespace(Id((*backend.outer, name)))["owner"] == "ada"
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(Id(), {})


def test_a_missing_namespace_is_code_1_for_every_method(backend: Backend, catalog: MountedCatalog) -> None:
    missing = Id((new_name("missing"),) * max(1, catalog.levels or 0))
    calls: list[Callable[[], object]] = [
        lambda: catalog.get_namespace(missing),
        lambda: catalog.list_namespaces(missing),
        lambda: catalog.list_tables(missing),
        lambda: catalog.get_table(Id((*missing, "t"))),
    ]
    if catalog.levels != 0:
        calls += [lambda: catalog.drop_namespace(missing), lambda: catalog.declare_table(Id((*missing, "t")), None, {})]
    for call in calls:
        with pytest.raises(NamespaceNotFoundError):
            call()
    assert missing.name not in catalog.list_namespaces(Id()).names


def test_list_namespaces_in_pages_has_each_once(backend: Backend, catalog: MountedCatalog) -> None:
    needs(backend, "create_namespace")
    names = {new_name("page") for _ in range(5)}
    for name in names:
        catalog.create_namespace(Id((*backend.outer, name)), {})
    pages = all_pages(lambda token: catalog.list_namespaces(backend.outer, 2, token))
    listed = [name for page in pages for name in page.names]
    assert all(len(page.names) <= 2 for page in pages)
    assert sorted(listed) == sorted(set(listed)) == sorted(catalog.list_namespaces(backend.outer).names)
    assert names <= set(listed)


def test_drop_namespace_with_a_table_is_code_3(backend: Backend, catalog: MountedCatalog) -> None:
    needs(backend, "drop_namespace")
    namespace = new_namespace(catalog)
    table = declare(catalog, namespace)
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(namespace)
    catalog.deregister_table(table.id)
    catalog.drop_namespace(namespace)
    with pytest.raises(NamespaceNotFoundError):
        catalog.get_namespace(namespace)


def test_drop_namespace_keeps_the_files_of_what_was_deregistered(backend: Backend, catalog: MountedCatalog) -> None:
    needs(backend, "drop_namespace")
    namespace = new_namespace(catalog)
    table = declare(catalog, namespace)
    backend.write(table.location, 3)
    catalog.deregister_table(table.id)
    catalog.drop_namespace(namespace)
    assert backend.count(table.location) == 3


def test_drop_namespace_with_a_table_of_another_format_is_code_3(backend: Backend, catalog: MountedCatalog) -> None:
    needs(backend, "drop_namespace")
    if backend.add_other_table is None:
        pytest.skip("it has no tables of other formats")
    namespace = new_namespace(catalog)
    backend.add_other_table(Id((*namespace, "other")))
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(namespace)


def test_namespaces_have_as_many_levels_as_the_backend_says(backend: Backend, catalog: MountedCatalog) -> None:
    needs(backend, "create_namespace")
    if catalog.levels is not None:
        innermost = new_namespace(catalog)
        assert len(innermost) == catalog.levels
        inner = Id((*innermost, "inner"))
        with pytest.raises(InvalidInputError, match=f"{catalog.levels} level"):
            catalog.create_namespace(inner, {})
        with pytest.raises(InvalidInputError):
            catalog.declare_table(Id((*inner, "t")), None, {})
        with pytest.raises(InvalidInputError):
            catalog.declare_table(Id(("t",)), None, {})
        with pytest.raises(NamespaceNotFoundError):
            catalog.get_namespace(inner)
        assert catalog.list_tables(Id()).names == catalog.list_tables(innermost).names == ()
        return
    name = new_name("ns")
    catalog.create_namespace(Id((name,)), {})
    catalog.create_namespace(Id((name, "inner")), {})
    table = declare(catalog, Id((name, "inner")))
    assert catalog.list_namespaces(Id((name,))).names == ("inner",)
    assert catalog.list_tables(Id((name, "inner"))).names == (table.id.name,)
    assert catalog.list_tables(Id((name,))).names == ()
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(Id((name,)))
    with pytest.raises(NamespaceNotFoundError):
        catalog.create_namespace(Id((new_name("missing"), "inner")), {})


# Tables


def test_declare_table_is_described_and_listed_the_same(catalog: MountedCatalog, namespace: Id) -> None:
    name = new_name("t")
    table = catalog.declare_table(Id((*namespace, name)), None, {})
    assert table.id == Id((*namespace, name))
    assert not table.location.startswith("file:")
    assert not table.location.endswith("/")
    assert catalog.get_table(table.id) == table
    assert name in catalog.list_tables(namespace).names


def test_declare_table_keeps_properties(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    table = Id((*namespace, new_name("t")))
    properties = {"team": "search", "empty": "", "ümlaut": "ß 北京"}
    if not backend.has_table_properties:
        with pytest.raises(UnsupportedOperationError):
            catalog.declare_table(table, None, properties)
        assert table.name not in catalog.list_tables(namespace).names
        return
    catalog.declare_table(table, None, properties)
    assert catalog.get_table(table).properties == properties


def test_declare_table_at_a_location_lies_there(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    if backend.location_of is None:
        pytest.skip("it has one place for a name")
    name = new_name("t")
    location = backend.location_of(name)
    backend.write(location, 3)
    table = catalog.declare_table(Id((*namespace, name)), location, {})
    assert (table.location, catalog.get_table(table.id).location) == Id((location, location))
    assert backend.count(table.location) == 3


def test_declare_table_twice_is_code_5_and_changes_nothing(catalog: MountedCatalog, namespace: Id) -> None:
    table = declare(catalog, namespace)
    with pytest.raises(TableAlreadyExistsError):
        catalog.declare_table(table.id, None, {})
    assert catalog.get_table(table.id) == table


def test_a_missing_table_is_code_4_for_every_method(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    missing = Id((*namespace, new_name("missing")))
    calls: dict[str, Callable[[], object]] = {
        "get_table": lambda: catalog.get_table(missing),
        "deregister_table": lambda: catalog.deregister_table(missing),
        "vend_credentials": lambda: catalog.vend_credentials(missing, writable=False),
        "update_table_properties": lambda: catalog.update_table_properties(missing, {"a": "b"}),
        "rename_table": lambda: catalog.rename_table(missing, Id((*namespace, new_name("t")))),
    }
    for method in calls.keys() - backend.unsupported:
        with pytest.raises(TableNotFoundError):
            calls[method]()


def test_data_at_the_location_can_be_written_and_read(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    table = declare(catalog, namespace)
    assert table.is_declared in (True, None)
    backend.write(table.location, 3)
    described = catalog.get_table(table.id)
    assert described.is_declared in (False, None)
    assert backend.count(described.location) == 3


def test_list_tables_in_pages_has_each_once(catalog: MountedCatalog, namespace: Id) -> None:
    names = {declare(catalog, namespace).id.name for _ in range(5)}
    pages = all_pages(lambda token: catalog.list_tables(namespace, 2, token))
    listed = [name for page in pages for name in page.names]
    assert all(len(page.names) <= 2 for page in pages)
    assert sorted(listed) == sorted(set(listed)) == sorted(names)


def test_deregister_table_keeps_its_files(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    table = declare(catalog, namespace)
    backend.write(table.location, 3)
    assert catalog.deregister_table(table.id).location == table.location
    assert table.id.name not in catalog.list_tables(namespace).names
    with pytest.raises(TableNotFoundError):
        catalog.get_table(table.id)
    assert backend.count(table.location) == 3


def test_declare_table_after_deregister_has_its_files_again(
    backend: Backend, catalog: MountedCatalog, namespace: Id
) -> None:
    table = declare(catalog, namespace)
    backend.write(table.location, 3)
    catalog.deregister_table(table.id)
    if backend.keeps_name_of_deregistered:
        with pytest.raises(TableAlreadyExistsError):
            catalog.declare_table(table.id, table.location, {})
        return
    if backend.chooses_locations:
        with pytest.raises(InvalidInputError, match="location"):
            catalog.declare_table(table.id, table.location, {})
        assert table.id.name not in catalog.list_tables(namespace).names
        return
    assert catalog.declare_table(table.id, table.location, {}).location == table.location
    assert backend.count(table.location) == 3


def test_update_table_properties_sets_and_removes(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    needs(backend, "update_table_properties")
    table = Id((*namespace, new_name("t")))
    before = catalog.declare_table(table, None, {"kept": "1", "changed": "1", "removed": "1"})
    after = catalog.update_table_properties(table, {"changed": "2", "removed": None, "added": "3"})
    assert after == catalog.get_table(table)
    assert after.properties == {"kept": "1", "changed": "2", "added": "3"}
    assert (after.location, after.stable_id) == (before.location, before.stable_id)
    with pytest.raises(InvalidInputError):
        catalog.update_table_properties(table, {"table_type": "parquet"})
    assert table.name in catalog.list_tables(namespace).names


def test_rename_table_keeps_location_properties_and_data(
    backend: Backend, catalog: MountedCatalog, namespace: Id
) -> None:
    needs(backend, "rename_table")
    old, new = Id((*namespace, new_name("t"))), Id((*namespace, new_name("renamed")))
    before = catalog.declare_table(old, None, {"team": "search"})
    backend.write(before.location, 3)
    after = catalog.rename_table(old, new)
    assert (after.id, after.location, after.properties) == (new, before.location, {"team": "search"})
    assert after == catalog.get_table(new)
    assert after.stable_id == before.stable_id
    assert backend.count(after.location) == 3
    assert catalog.list_tables(namespace).names == (new.name,)
    with pytest.raises(TableNotFoundError):
        catalog.get_table(old)


def test_rename_table_to_another_namespace(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    needs(backend, "rename_table")
    table = declare(catalog, namespace)
    with pytest.raises(NamespaceNotFoundError):
        catalog.rename_table(table.id, Id((*namespace.parent, new_name("missing"), "moved")))
    other = Id((*namespace.parent, new_name("ns")))
    catalog.create_namespace(other, {})
    assert catalog.rename_table(table.id, Id((*other, "moved"))).location == table.location
    assert catalog.list_tables(namespace).names == ()
    assert catalog.list_tables(other).names == ("moved",)


def test_rename_table_to_a_name_that_is_taken_is_code_5(
    backend: Backend, catalog: MountedCatalog, namespace: Id
) -> None:
    needs(backend, "rename_table")
    one, other = declare(catalog, namespace), declare(catalog, namespace)
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table(one.id, other.id)
    assert (catalog.get_table(one.id), catalog.get_table(other.id)) == Id((one, other))


def test_a_table_of_another_format_is_not_listed_and_never_touched(
    backend: Backend, catalog: MountedCatalog, namespace: Id
) -> None:
    if backend.add_other_table is None or backend.read_other_table is None:
        pytest.skip("it has no tables of other formats")
    table = Id((*namespace, new_name("other")))
    backend.add_other_table(table)
    before = backend.read_other_table(table)
    assert table.name not in catalog.list_tables(namespace).names
    calls: dict[str, Callable[[], object]] = {
        "get_table": lambda: catalog.get_table(table),
        "deregister_table": lambda: catalog.deregister_table(table),
        "vend_credentials": lambda: catalog.vend_credentials(table, writable=True),
        "update_table_properties": lambda: catalog.update_table_properties(table, {"a": "b"}),
        "rename_table": lambda: catalog.rename_table(table, Id((*namespace, new_name("t")))),
    }
    for method in calls.keys() - backend.unsupported:
        with pytest.raises(TableNotFoundError, match="no Lance table" if catalog.levels != 0 else "No table"):
            calls[method]()
    assert backend.read_other_table(table) == before


def test_names_that_the_backend_folds_or_cannot_hold_are_refused(
    backend: Backend, catalog: MountedCatalog, namespace: Id
) -> None:
    for name in backend.impossible_names:
        with pytest.raises(InvalidInputError):
            catalog.declare_table(Id((*namespace, name)), None, {})
        with pytest.raises((TableNotFoundError, NamespaceNotFoundError)):
            catalog.get_table(Id((*namespace, name)))
        if "create_namespace" not in backend.unsupported:
            with pytest.raises(InvalidInputError):
                catalog.create_namespace(Id((name,)), {})
            with pytest.raises(NamespaceNotFoundError):
                catalog.get_namespace(Id((name,)))
        if "rename_table" not in backend.unsupported:
            table = declare(catalog, namespace)
            with pytest.raises(InvalidInputError):
                catalog.rename_table(table.id, Id((*namespace, name)))
            catalog.deregister_table(table.id)
    assert catalog.list_tables(namespace).names == ()


def test_what_the_backend_cannot_do_is_code_0_and_says_so(
    backend: Backend, catalog: MountedCatalog, namespace: Id
) -> None:
    table = declare(catalog, namespace)
    calls: dict[str, Callable[[], object]] = {
        "create_namespace": lambda: catalog.create_namespace(Id((new_name("ns"),)), {}),
        "update_table_properties": lambda: catalog.update_table_properties(table.id, {"a": "b"}),
        "rename_table": lambda: catalog.rename_table(table.id, Id((*namespace, new_name("t")))),
    }
    for method in calls.keys() & backend.unsupported:
        with pytest.raises(UnsupportedOperationError) as caught:
            calls[method]()
        assert caught.value.code == ErrorCode.UNSUPPORTED
        assert "cannot" in str(caught.value), "a sentence that names backend and operation"


# Many at once


def test_clients_see_each_others_changes_at_once(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    other = backend.open()
    for _ in range(3):
        table = declare(catalog, namespace)
        assert other.get_table(table.id) == table
        assert other.list_tables(namespace).names == catalog.list_tables(namespace).names
        other.deregister_table(table.id)
        with pytest.raises(TableNotFoundError):
            catalog.get_table(table.id)
        assert table.id.name not in catalog.list_tables(namespace).names
    other.close()


def test_of_eight_that_declare_one_name_one_succeeds(backend: Backend, catalog: MountedCatalog, namespace: Id) -> None:
    table = Id((*namespace, new_name("t")))

    def attempt(_: int) -> str | None:
        try:
            return catalog.declare_table(table, None, {}).location
        except TableAlreadyExistsError:
            return None

    with ThreadPoolExecutor(8) as threads:
        locations = [location for location in threads.map(attempt, range(8)) if location]
    assert locations == [catalog.get_table(table).location]


def test_eight_threads_share_one_catalog(catalog: MountedCatalog, namespace: Id) -> None:
    def work(_: int) -> MountedTable:
        table = declare(catalog, namespace)
        with suppress(LanceNamespaceError):
            catalog.list_tables(namespace)
        assert catalog.get_table(table.id) == table
        return table

    with ThreadPoolExecutor(8) as threads:
        names = [table.id.name for table in threads.map(work, range(32))]
    assert sorted(catalog.list_tables(namespace).names) == sorted(names)
