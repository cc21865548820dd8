"""A catalog that an earlier version made, in SQLite and in PostgreSQL, opens and works.

`old_catalog/` holds what Tiltyard made at commit 93c2f08: dumps of both databases, `@ROOT@` in the place of their root,
and the files of their tables. The secret of ann's key is 43 times the letter A.
"""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import psycopg
import pyarrow as pa
import pytest
from lance_namespace.errors import TableNotFoundError

import tiltyard
from tiltyard.identity.keys import verify_key
from tiltyard.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = Path(__file__).parent / "old_catalog"
KEY = "tilt_0123456789abcdef_" + 43 * "A"
WORDS = ["team", "words"]


@pytest.fixture
def old_catalog(tmp_path: Path, new_url: Callable[[], str], database_kind: str) -> tuple[str, str]:
    """Restore the earlier version's tables and database; return root and database URL."""
    root, url = tmp_path / "root", new_url()
    with tarfile.open(FOLDER / f"{database_kind}.tar.gz") as archive:
        archive.extractall(root, filter="data")
    dump = (FOLDER / f"{database_kind}.sql").read_text().replace("@ROOT@", str(root))
    if database_kind == "sqlite":
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.executescript(dump)
        connection.close()
    else:
        with psycopg.connect(url) as postgres:
            postgres.execute(dump)  # type: ignore[arg-type]  # it is our own text, not a literal
    return str(root), url


@pytest.fixture
def namespace(old_catalog: tuple[str, str]) -> Iterator[Any]:
    with tiltyard.Namespace(*old_catalog) as opened:
        yield opened


def test_entries_of_an_old_catalog_are_listed(namespace: Any) -> None:
    assert namespace.list_namespaces({"id": []}).namespaces == ["team"]
    assert namespace.list_namespaces({"id": ["team"]}).namespaces == ["inner"]
    assert namespace.describe_namespace({"id": ["team"]}).properties == {"owner": "ann"}
    assert namespace.list_tables({"id": ["team"], "include_declared": True}).tables == ["declared", "words"]
    assert [version.version for version in namespace.list_table_versions({"id": WORDS}).versions] == [1, 2, 3]
    assert set(namespace.list_table_tags({"id": WORDS}).tags) == {"first"}
    assert set(namespace.list_table_branches({"id": WORDS}).branches) == {"side"}
    [index] = namespace.list_table_indices({"id": ["plain"]}).indexes
    assert (index.index_name, index.num_unindexed_rows) == ("by_id", 0)


def test_tables_of_an_old_catalog_are_read_and_written_by_pylance(namespace: Any) -> None:
    dataset = lance.dataset(namespace_client=namespace, table_id=WORDS)
    assert sorted(dataset.to_table()["text"].to_pylist()) == ["ONE", "four", "three", "two"]
    assert lance.dataset(namespace_client=namespace, table_id=WORDS, version=1).count_rows() == 3
    row = pa.table({"id": pa.array([4], pa.int64()), "text": ["five"]})
    lance.write_dataset(row, namespace_client=namespace, table_id=WORDS, mode="append")
    assert namespace.count_table_rows({"id": WORDS}).count == 5
    namespace.restore_table({"id": WORDS, "version": 1})
    assert namespace.count_table_rows({"id": WORDS}).count == 3


def test_grants_policies_and_keys_of_an_old_catalog_hold(old_catalog: tuple[str, str], namespace: Any) -> None:
    assert namespace.call("ListRoles", {})["roles"][0]["name"] == "analysts"
    with tiltyard.Namespace(*old_catalog, principal="ann") as ann:
        assert ann.count_table_rows({"id": WORDS}).count == 3  # her policy leaves out the row with id 3
        with pytest.raises(TableNotFoundError):
            ann.count_table_rows({"id": ["plain"]})
    store: Store = open_store(old_catalog[1])
    _, principal = verify_key(store, KEY.encode(), now_ms=0)
    store.close()
    assert principal.name == "ann"
