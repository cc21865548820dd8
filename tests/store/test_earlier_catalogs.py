"""A catalog of each number of the schema opens after `tiltyard db upgrade`, and works.

Its rows are those of `earlier_rows.py`, which says how they were made.
"""

from __future__ import annotations

import shutil
import tarfile
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import TableNotFoundError

import tiltyard
from tests.services.wire import stream
from tests.store.earlier_rows import GONE, INDEX, INGEST, KEY, PLAIN, write_rows
from tests.store.test_old_catalog import FOLDER
from tiltyard.cli import main
from tiltyard.identity.keys import verify_key
from tiltyard.store import open_store, wall_clock
from tiltyard.store.schema import migrate, migrations
from tiltyard.store.store import open_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LATEST = migrations()[-1].version
WORDS = ["team", "words"]
ROW = stream(pa.table({"id": pa.array([4], pa.int64()), "text": ["five"]}))


def test_catalog_of_each_schema_number_works_after_upgrade(
    tmp_path: Path, new_url: Callable[[], str], database_kind: str
) -> None:
    numbers = range(1, LATEST) if database_kind == "sqlite" else (1, 9, LATEST - 1)
    for number in numbers:
        root, url = tmp_path / f"root-{number}", new_url()
        make_catalog(url, number, root)
        done = CliRunner().invoke(main, ["db", "upgrade", "--db", url])
        names = [migration.name for migration in migrations() if migration.version > number]
        assert (done.exit_code, done.output.split()) == (0, names), done.output
        _check_namespaces_of_jobs(url)
        with tiltyard.Namespace(str(root), url, jobs=0) as namespace:
            check_entries(namespace, number)
            check_rows(namespace, root, number)
            check_access(namespace, str(root), url, number)


def make_catalog(url: str, number: int, root: Path) -> None:
    """Make a catalog with the schema of a number, with rows of its time and the files of its tables."""
    with tarfile.open(FOLDER / "sqlite.tar.gz") as archive:
        archive.extractall(root, filter="data")
    shutil.copytree(root / PLAIN, root / GONE)
    database = open_database(url)
    migrate(database, wall_clock, upto=number)
    database.write(lambda connection: write_rows(connection, number, root))
    database.close()


def _check_namespaces_of_jobs(url: str) -> None:
    """Check what number 22 made of rows that were there."""
    database = open_database(url)
    rows = database.read(lambda connection: connection.rows("SELECT DISTINCT namespace_id FROM transactions"))
    assert rows == [(1,)]
    database.close()


def check_entries(namespace: tiltyard.Namespace, number: int) -> None:
    assert namespace.list_namespaces({"id": ["team"]}).namespaces == ["inner"]
    assert namespace.describe_namespace({"id": ["team"]}).properties == {"owner": "ann"}
    assert namespace.list_tables({"id": ["team"], "include_declared": True}).tables == ["declared", "words"]
    versions = [version.version for version in namespace.list_table_versions({"id": WORDS}).versions]
    assert versions == ([1, 3] if number >= 12 else [1, 2, 3])
    assert namespace.describe_transaction({"id": [INDEX]}).status == "Succeeded"
    jobs = namespace.call("ListAllJobs", {})["jobs"]
    assert [job["job_id"] for job in jobs].count(INGEST) == (number >= 7), jobs
    namespace.create_namespace({"id": ["team", "new"]})
    assert namespace.list_namespaces({"id": ["team"]}).namespaces == ["inner", "new"]


def check_rows(namespace: tiltyard.Namespace, root: Path, number: int) -> None:
    dataset = lance.dataset(namespace_client=namespace, table_id=WORDS)
    assert sorted(dataset.to_table()["text"].to_pylist()) == ["ONE", "four", "three", "two"]
    assert namespace.insert_into_table({"id": WORDS}, ROW).version == 4
    assert namespace.count_table_rows({"id": WORDS}).count == 5
    namespace.create_table({"id": ["team", "made"]}, ROW)
    assert namespace.count_table_rows({"id": ["team", "made"]}).count == 1
    if number >= 3:
        assert "gone" not in namespace.list_tables({"id": []}).tables
        namespace.call("UndropTable", {"id": ["gone"]})
    assert namespace.count_table_rows({"id": ["gone"]}).count == 3


def check_access(namespace: tiltyard.Namespace, root: str, url: str, number: int) -> None:
    if number >= 4:
        with open_store(url, migrate=False) as store:
            assert verify_key(store, KEY.encode(), now_ms=0)[1].name == "ann"
    if number >= 5:
        (record,) = namespace.call("ListAuditRecords", {"object": "gone"})["records"]
        assert (record["operation"], record["principal"]) == ("DropTable", "ann")
    if number >= 6:
        with tiltyard.Namespace(root, url, principal="ann", jobs=0) as ann:
            assert ann.count_table_rows({"id": WORDS}).count == (3 if number >= 8 else 5)
            with pytest.raises(TableNotFoundError):
                ann.count_table_rows({"id": ["plain"]})
