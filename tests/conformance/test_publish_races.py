"""`tiltyard.publish` against concurrent changes at the worst moment: no file is lost, and the error is exact."""

# ruff: noqa: PT012 - what raises is the end of a block, whatever it holds

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import lance
import lance.namespace as rust
import pyarrow as pa
import pytest
from lance import blob_array, blob_field
from lance_namespace import (
    BatchCommitTablesRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    RenameTableRequest,
)
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError, TableAlreadyExistsError, ThrottlingError

import tiltyard
from tests.conformance.test_publish import ROWS, RecordingHandler, Stop, write
from tests.identity.test_startup import certificate
from tests.services.server import ServerProcess
from tiltyard.publishing import commit
from tiltyard.publishing.batch_call import NotSentError, batch_sender
from tiltyard.runtime.failpoints import Point
from tiltyard.tables.commits import finalizing

pytestmark = pytest.mark.extended


class LocalCatalog:
    """A catalog and its tables on a local disk."""

    def __init__(self, root: Path) -> None:
        self.client = tiltyard.Namespace(str(root), jobs=0, retention_days=0)

    def location(self, name: str) -> Path:
        return Path(str(self.client.describe_table(DescribeTableRequest(id=[name])).location))

    def files(self, name: str) -> set[str]:
        folder = self.location(name)
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return {path for path in files if not path.endswith("latest_version_hint.json")}

    def rows(self, name: str, version: int | None = None) -> int:
        """Count rows by reading them."""
        return int(lance.dataset(namespace_client=self.client, table_id=[name], version=version).to_table().num_rows)

    def rename(self, name: str, new_name: str) -> None:
        self.client.rename_table(RenameTableRequest(id=[name], new_table_name=new_name))

    def drop(self, name: str) -> None:
        self.client.drop_table(DropTableRequest(id=[name]))


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCatalog]:
    monkeypatch.setattr(commit, "PAUSES", (0, 0))
    catalog = LocalCatalog(tmp_path / "root")
    with catalog.client:
        yield catalog


def run_after_record(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> None:
    """Run an action once, when a batch is recorded and its manifests are not finalized."""
    actions = [action]

    def reached(point: Point) -> None:
        if point is Point.AFTER_RECORD and actions:
            actions.pop()()

    monkeypatch.setattr(finalizing, "reach", reached)


def test_publish_whose_table_is_dropped_after_the_record_is_published(
    catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(catalog.client, [name])
    with tiltyard.publish(catalog.client) as tables:
        for name in ("b", "a"):
            write(tables, [name], "append")
        write(tables, ["new"])
        run_after_record(monkeypatch, lambda: catalog.drop("a"))
    assert (catalog.rows("b"), catalog.rows("new")) == (6, 3)


def test_publish_whose_version_is_replaced_after_the_record_is_uncertain_and_deletes_nothing(
    catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(catalog.client, [name])
    location = catalog.location("a")
    with (
        pytest.raises(tiltyard.PublishUncertainError, match="published all but a:"),
        tiltyard.publish(catalog.client) as tables,
    ):
        for name in ("b", "a"):
            write(tables, [name], "append")
        write(tables, ["new"])
        run_after_record(monkeypatch, lambda: lance.write_dataset(ROWS.slice(2), location, mode="append"))
    assert (catalog.rows("a"), catalog.rows("b"), catalog.rows("new")) == (4, 6, 3)


def test_publish_whose_manifests_cannot_be_finalized_is_not_rolled_back(
    catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage refuses the server's requests for a moment."""
    write(catalog.client, ["a"])

    def refused(*_: Any) -> None:
        raise InvalidInputError("no")

    with monkeypatch.context() as patch:
        for name in ("publish_checked", "finalize", "finalize_content"):
            patch.setattr(f"tiltyard.storage.manifests.manifest_store.ManifestStore.{name}", refused)
        with pytest.raises(tiltyard.PublishUncertainError), tiltyard.publish(catalog.client) as tables:
            write(tables, ["a"], "append")
            write(tables, ["new"])
    assert (catalog.rows("a"), catalog.rows("new")) == (6, 3)


@pytest.mark.parametrize("has_new_table", [True, False])
def test_publish_that_fails_on_a_renamed_table_deletes_none_of_its_files(
    catalog: LocalCatalog, has_new_table: bool
) -> None:
    """Even if another table has the name now, so that the client cannot look up the renamed one."""
    write(catalog.client, ["a"])
    with pytest.raises(tiltyard.PublishConflictError), tiltyard.publish(catalog.client) as tables:
        write(tables, ["a"], "append")
        for _ in range(2):
            write(catalog.client, ["a"], "append", ROWS.slice(2))
        with suppress(OSError):
            write(tables, ["a"], "append")  # Lance finds their versions in storage
        catalog.rename("a", "other")
        if has_new_table:
            write(catalog.client, ["a"])
            for _ in range(3):
                write(catalog.client, ["a"], "append")
    assert catalog.rows("other") == 5
    assert not any("_publishing-" in path or ".manifest-" in path for path in catalog.files("other"))


def test_publish_that_reads_a_table_replaced_meanwhile_names_it(catalog: LocalCatalog) -> None:
    write(catalog.client, ["a"])
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(catalog.client) as tables:
        write(tables, ["a"], "append")
        catalog.rename("a", "other")
        write(catalog.client, ["a"])
        lance.dataset(namespace_client=tables, table_id=["a"])
    assert conflict.value.tables == (("a",),)


def test_publish_that_fails_keeps_what_a_restored_version_needs_in_a_copied_folder(catalog: LocalCatalog) -> None:
    """The data files of a copy may be newer than its manifests."""
    write(catalog.client, ["t"])
    write(catalog.client, ["t"], "overwrite", ROWS.slice(2))
    folder = catalog.location("t")
    for path in (folder / "data").iterdir():
        shutil.copyfile(path, folder / "copy")
        (folder / "copy").replace(path)
    with suppress(Stop), tiltyard.publish(catalog.client) as tables:
        lance.dataset(namespace_client=tables, table_id=["t"]).checkout_version(1).restore()
        raise Stop
    assert (catalog.rows("t", 1), catalog.rows("t")) == (3, 1)


def test_publish_that_fails_leaves_no_blobs(catalog: LocalCatalog) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("content")])
    rows = pa.table({"id": [1, 2], "content": blob_array([b"x" * 5_000_000, b"y" * 200_000])}, schema=schema)
    lance.write_dataset(rows, namespace_client=catalog.client, table_id=["t"], data_storage_version="2.2")
    before = catalog.files("t")
    assert any(path.endswith(".blob") for path in before)
    with suppress(Stop), tiltyard.publish(catalog.client) as tables:
        lance.write_dataset(rows, namespace_client=tables, table_id=["t"], mode="append")
        assert sum(path.endswith(".blob") for path in catalog.files("t") - before) > 0
        raise Stop
    assert catalog.files("t") == before


def test_publish_deregisters_the_table_that_it_saw_and_no_other_of_its_name(catalog: LocalCatalog) -> None:
    write(catalog.client, ["old"])
    with pytest.raises(tiltyard.PublishConflictError, match="old first"), tiltyard.publish(catalog.client) as tables:
        tables.deregister_table(DeregisterTableRequest(id=["old"]))
        catalog.rename("old", "kept")
        write(catalog.client, ["old"])
    assert (catalog.rows("old"), catalog.rows("kept")) == (3, 3)


def test_publish_declares_no_table_that_it_has_written_before_somebody_dropped_it(catalog: LocalCatalog) -> None:
    write(catalog.client, ["t"])
    with suppress(Stop), tiltyard.publish(catalog.client) as tables:
        write(tables, ["t"], "append")
        catalog.drop("t")
        with pytest.raises(TableAlreadyExistsError, match="was there when this block wrote it"):
            tables.declare_table({"id": ["t"]})
        raise Stop


def test_publish_takes_no_version_of_a_thread_that_is_late(catalog: LocalCatalog) -> None:
    write(catalog.client, ["t"])
    with tiltyard.publish(catalog.client) as tables:
        changes = tables._changes
        location = write(tables, ["t"], "append").uri
    assert location and catalog.rows("t") == 6
    [operation] = changes.operations
    assert operation.create_table_version is not None
    with pytest.raises(InvalidInputError, match="has ended"):
        changes.add_version(operation.create_table_version)


@pytest.mark.parametrize("error", [NotSentError("refused"), ThrottlingError("slowly")])
def test_publish_that_no_server_has_received_is_rolled_back(
    catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def not_received(*_: Any) -> None:
        raise error

    with pytest.raises(type(error)), tiltyard.publish(catalog.client) as tables:
        location = write(tables, ["new"]).uri
        monkeypatch.setattr(tables, "_send", not_received)
    assert not Path(location).exists()


def test_publish_retries_a_batch_that_no_server_has_received(
    catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [NotSentError("refused"), ThrottlingError("slowly")]

    def received_at_last(request: BatchCommitTablesRequest, key: str | None) -> Any:
        if errors:
            raise errors.pop()
        return catalog.client.batch_commit_tables(request)

    with tiltyard.publish(catalog.client) as tables:
        write(tables, ["new"])
        monkeypatch.setattr(tables, "_send", received_at_last)
    assert catalog.rows("new") == 3


def test_batch_sender_distinguishes_an_unreachable_server_from_a_lost_response() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), RecordingHandler) as server:
        server.requests, server.responses = [], []  # type: ignore[attr-defined]  # it breaks off: there is no answer
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = rust.RestNamespace(uri=f"http://127.0.0.1:{server.server_port}")
        send = batch_sender(client, {})
        with pytest.raises(ServiceUnavailableError, match="did not answer"):
            send(BatchCommitTablesRequest(operations=[]), "a key")
        server.shutdown()
    with pytest.raises(NotSentError, match="cannot be reached"):
        send(BatchCommitTablesRequest(operations=[]), "a key")


def test_publish_by_https_verifies_with_the_given_authorities(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    server = ServerProcess(tmp_path / "root", "--tls-certificate", str(chain), "--tls-key", str(key))
    try:
        client = rust.RestNamespace(**{"uri": server.url, "tls.ssl_ca_cert": str(chain)})
        with pytest.raises(InvalidInputError, match="ssl_ca_cert="), tiltyard.publish(client) as tables:
            write(tables, ["t"])
        with tiltyard.publish(client, ssl_ca_cert=str(chain)) as tables:
            write(tables, ["t"])
        assert lance.dataset(namespace_client=client, table_id=["t"]).count_rows() == 3
    finally:
        server.stop()
