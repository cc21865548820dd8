"""Three stock clients with one interface, and the outcome of calls that failed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import httpx
import lance
import lance.namespace
import lance_namespace_urllib3_client as generated
import lance_namespace_urllib3_client.api as apis
import lancedb
import pyarrow as pa
import pydantic
import urllib3
from lancedb.remote import ClientConfig, TimeoutConfig
from lancedb.remote.errors import HttpError, RetryError

from tests.faults.soak.contents import COLUMNS, predicate
from tests.faults.soak.journal import Outcome, Row, digest_of
from tests.faults.soak.staging_client import Staging
from tests.services.wire import stream

SECONDS = 30
_CONFLICT = re.compile(r"[Cc]ommit conflict|Retryable commit|concurrent|Incompatible transaction|preempted", re.DOTALL)
_UNSURE = re.compile(r"unknown|timed? ?out", re.IGNORECASE)


class NothingSentError(Exception):
    """A call failed before it could change anything."""


class Client(Protocol):
    """A client. Writes return their version, 0 where it is unknown. Methods raise what the client raises."""

    name: str

    def append(self, table: str, rows: Sequence[Row]) -> int: ...
    def overwrite(self, table: str, rows: Sequence[Row]) -> int: ...
    def merge(self, table: str, rows: Sequence[Row]) -> int: ...
    def delete(self, table: str, attempt: str, keys: tuple[str, ...]) -> int: ...
    def restore(self, table: str, version: int) -> int: ...
    def tag(self, table: str, name: str, version: int) -> None: ...
    def read(self, table: str) -> tuple[str, int]: ...


def arrow(rows: Sequence[Row]) -> pa.Table:
    """Convert rows to Arrow."""
    return pa.table(
        {name: pa.array(values, pa.string()) for name, values in zip(COLUMNS, zip(*rows, strict=True), strict=True)}
    )


def seen(table: pa.Table) -> str:
    """Compute the digest of rows that were read."""
    return digest_of(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))


class Pylance:
    """pylance: reads and writes the files itself; versions and commits go through the server."""

    name = "pylance"

    def __init__(self, url: str) -> None:
        self._namespace = lance.namespace.RestNamespace(uri=url)

    def _open(self, table: str) -> lance.LanceDataset:
        try:
            return lance.dataset(namespace_client=self._namespace, table_id=[table])
        except Exception as error:
            raise NothingSentError(str(error)) from error

    def append(self, table: str, rows: Sequence[Row]) -> int:
        dataset = self._open(table)
        dataset.insert(arrow(rows))
        return int(dataset.version)

    def overwrite(self, table: str, rows: Sequence[Row]) -> int:
        dataset = self._open(table)
        dataset.insert(arrow(rows), mode="overwrite")
        return int(dataset.version)

    def merge(self, table: str, rows: Sequence[Row]) -> int:
        dataset = self._open(table)
        dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(arrow(rows))
        return int(dataset.version)

    def delete(self, table: str, attempt: str, keys: tuple[str, ...]) -> int:
        dataset = self._open(table)
        dataset.delete(predicate(attempt, keys))
        return 0  # Lance makes a version for a delete that finds nothing, or none

    def restore(self, table: str, version: int) -> int:
        try:
            dataset = self._open(table).checkout_version(version)
        except Exception as error:
            raise NothingSentError(str(error)) from error
        dataset.restore()
        return 0

    def tag(self, table: str, name: str, version: int) -> None:
        self._open(table).tags.create(name, version)

    def read(self, table: str) -> tuple[str, int]:
        dataset = self._open(table)
        return seen(dataset.to_table(columns=COLUMNS)), int(dataset.version)


class Lancedb:
    """lancedb: sends everything to the server; retries with the same request id."""

    name = "lancedb"

    def __init__(self, url: str) -> None:
        config = ClientConfig(timeout_config=TimeoutConfig(timeout=timedelta(seconds=SECONDS)))
        self._database = lancedb.connect("db://history", api_key="none", host_override=url, client_config=config)

    def _open(self, table: str) -> Any:
        try:
            return self._database.open_table(table)
        except Exception as error:
            raise NothingSentError(str(error)) from error

    def append(self, table: str, rows: Sequence[Row]) -> int:
        return int(self._open(table).add(arrow(rows)).version)

    def overwrite(self, table: str, rows: Sequence[Row]) -> int:
        return int(self._open(table).add(arrow(rows), mode="overwrite").version)

    def merge(self, table: str, rows: Sequence[Row]) -> int:
        merge = self._open(table).merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        return int(merge.execute(arrow(rows)).version)

    def delete(self, table: str, attempt: str, keys: tuple[str, ...]) -> int:
        self._open(table).delete(predicate(attempt, keys))
        return 0

    def restore(self, table: str, version: int) -> int:
        self._open(table).restore(version)
        return 0

    def tag(self, table: str, name: str, version: int) -> None:
        dataset = self._open(table)
        try:
            dataset.tags.create(name, version)
        except HttpError as error:  # its own first try, of which it did not hear: docs/exactly-once.md
            if f"The tag '{name}' exists" not in str(error):
                raise

    def read(self, table: str) -> tuple[str, int]:
        return seen(self._open(table).search().select(COLUMNS).limit(1 << 30).to_arrow()), 0


class Generated:
    """The client that is generated from the specification."""

    name = "generated"

    def __init__(self, url: str) -> None:
        api = generated.ApiClient(generated.Configuration(host=url))
        self._data, self._tables, self._tags = apis.DataApi(api), apis.TableApi(api), apis.TagApi(api)

    def create(self, table: str, rows: Sequence[Row]) -> None:
        self._data.create_table(table, stream(arrow(rows)), _request_timeout=SECONDS)

    def append(self, table: str, rows: Sequence[Row]) -> int:
        return int(self._insert(table, rows, "append"))

    def overwrite(self, table: str, rows: Sequence[Row]) -> int:
        return int(self._insert(table, rows, "overwrite"))

    def _insert(self, table: str, rows: Sequence[Row], mode: str) -> Any:
        response = self._data.insert_into_table(table, stream(arrow(rows)), mode=mode, _request_timeout=SECONDS)
        return response.version

    def merge(self, table: str, rows: Sequence[Row]) -> int:
        response = self._data.merge_insert_into_table(
            table,
            ["key"],
            stream(arrow(rows)),
            when_matched_update_all=True,
            when_not_matched_insert_all=True,
            _request_timeout=SECONDS,
        )
        return int(response.version or 0)

    def delete(self, table: str, attempt: str, keys: tuple[str, ...]) -> int:
        request = generated.DeleteFromTableRequest(predicate=predicate(attempt, keys))
        self._data.delete_from_table(table, request, _request_timeout=SECONDS)
        return 0

    def restore(self, table: str, version: int) -> int:
        self._tables.restore_table(table, generated.RestoreTableRequest(version=version), _request_timeout=SECONDS)
        return 0

    def tag(self, table: str, name: str, version: int) -> None:
        request = generated.CreateTableTagRequest(tag=name, version=version)
        self._tags.create_table_tag(table, request, _request_timeout=SECONDS)

    def read(self, table: str) -> tuple[str, int]:
        request = generated.QueryTableRequest(
            vector={"single_vector": []}, k=1 << 30, columns={"column_names": COLUMNS}
        )
        response = self._data.query_table(table, request, _request_timeout=SECONDS)
        return seen(pa.ipc.open_file(pa.BufferReader(bytes(response))).read_all()), 0


class Batches:
    """Stages appends to several tables with pylance, and commits them in one batch."""

    name = "batch"

    def __init__(self, url: str) -> None:
        self._url = url
        self._tables = apis.TableApi(generated.ApiClient(generated.Configuration(host=url)))

    def commit(self, rows: Mapping[str, Sequence[Row]]) -> dict[str, int]:
        """Return the version of each table."""
        staging = Staging(lance.namespace.RestNamespace(uri=self._url))
        try:
            for table, own_rows in rows.items():
                lance.dataset(namespace_client=staging, table_id=[table]).insert(arrow(own_rows))
        except Exception as error:
            raise NothingSentError(str(error)) from error
        operations = [{"create_table_version": staged} for staged in staging.staged]
        request = generated.BatchCommitTablesRequest.from_dict({"operations": operations})
        assert request is not None
        response = self._tables.batch_commit_tables(request, _request_timeout=SECONDS)
        versions = [result.create_table_version.version for result in response.results]
        return {table: version.version for table, version in zip(rows, versions, strict=True)}


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of a failed call: refused if it certainly changed nothing. Raises errors of the tests."""
    match error:
        case NothingSentError():
            return Outcome.REFUSED
        case NotImplementedError() | TypeError() | AttributeError() | pydantic.ValidationError():
            raise error  # the call itself is wrong
        case generated.ApiException():
            return _of_status(error.status)
        case urllib3.exceptions.MaxRetryError():  # it repeats nothing but what could not connect
            return Outcome.REFUSED
        case HttpError():
            return _of_status(error.status_code)
        case RetryError():
            is_never_retried = not error.request_failures and not error.read_failures
            return Outcome.REFUSED if is_never_retried else Outcome.UNKNOWN
        case _ if _CONFLICT.search(str(error)) and not _UNSURE.search(str(error)):
            return Outcome.REFUSED
        case _:
            return Outcome.UNKNOWN


def _of_status(status: int | None) -> Outcome:
    return Outcome.REFUSED if status is not None and 400 <= status < 500 else Outcome.UNKNOWN


def wait_until_readable(url: str, tables: Sequence[str]) -> None:
    """Read each table once through the server: the next reader completes what a crash has interrupted."""
    with httpx.Client(base_url=url, timeout=SECONDS) as http:
        for table in tables:
            for action in ("version/list", "count_rows"):
                response = http.post(f"/v1/table/{table}/{action}", json={})
                assert response.status_code == 200, response.text
