"""`tiltyard.publish`: what others do to its tables at the worst moment costs nobody a file, and is told as it is."""

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
from tests.conformance.test_publish import ROWS, Answers, Stop, write
from tests.identity.test_serving import certificate
from tests.services.server import ServerProcess
from tiltyard.publishing import commit
from tiltyard.publishing.batch_call import NotSentError, batch_sender
from tiltyard.runtime.failpoints import Point
from tiltyard.tables.commits import finalizing


class Home:
    """A catalog and its tables on a disk."""

    def __init__(self, root: Path) -> None:
        self.client = tiltyard.Namespace(str(root), jobs=0, retention_days=0)

    def location(self, name: str) -> Path:
        return Path(str(self.client.describe_table(DescribeTableRequest(id=[name])).location))

    def files(self, name: str) -> set[str]:
        folder = self.location(name)
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return {path for path in found if not path.endswith("latest_version_hint.json")}

    def rows(self, name: str, version: int | None = None) -> int:
        """Counted by reading them."""
        return int(lance.dataset(namespace_client=self.client, table_id=[name], version=version).to_table().num_rows)

    def rename(self, name: str, other: str) -> None:
        self.client.rename_table(RenameTableRequest(id=[name], new_table_name=other))

    def drop(self, name: str) -> None:
        self.client.drop_table(DropTableRequest(id=[name]))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setattr(commit, "PAUSES", (0, 0))
    home = Home(tmp_path / "root")
    with home.client:
        yield home


def behind_the_record(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """Somebody does something at the moment when a batch is recorded, and its manifests are not in their places."""
    left = [work]

    def reached(point: Point) -> None:
        if point is Point.AFTER_RECORD and left:
            left.pop()()

    monkeypatch.setattr(finalizing, "reach", reached)


def test_publish_whose_table_is_dropped_behind_the_record_is_published(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(home.client, [name])
    with tiltyard.publish(home.client) as tables:
        for name in ("b", "a"):
            write(tables, [name], "append")
        write(tables, ["new"])
        behind_the_record(monkeypatch, lambda: home.drop("a"))
    assert (home.rows("b"), home.rows("new")) == (6, 3)


def test_publish_whose_version_loses_its_place_behind_the_record_says_so_and_deletes_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(home.client, [name])
    location = home.location("a")
    with (
        pytest.raises(tiltyard.PublishUncertainError, match="published all but a:"),
        tiltyard.publish(home.client) as tables,
    ):
        for name in ("b", "a"):
            write(tables, [name], "append")
        write(tables, ["new"])
        behind_the_record(monkeypatch, lambda: lance.write_dataset(ROWS.slice(2), location, mode="append"))
    assert (home.rows("a"), home.rows("b"), home.rows("new")) == (4, 6, 3)


def test_publish_whose_manifests_cannot_be_placed_is_not_taken_for_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a storage that refuses the server for a moment."""
    write(home.client, ["a"])

    def refused(*_: Any) -> None:
        raise InvalidInputError("no")

    with monkeypatch.context() as patch:
        for name in ("rename_checked", "finalize", "finalize_content"):
            patch.setattr(f"tiltyard.storage.manifest_store.ManifestStore.{name}", refused)
        with pytest.raises(tiltyard.PublishUncertainError), tiltyard.publish(home.client) as tables:
            write(tables, ["a"], "append")
            write(tables, ["new"])
    assert (home.rows("a"), home.rows("new")) == (6, 3)


@pytest.mark.parametrize("again", [True, False])
def test_publish_that_fails_on_a_renamed_table_deletes_none_of_its_files(home: Home, again: bool) -> None:
    """Even if somebody has made another table of the name, so that nobody can be asked about the renamed one."""
    write(home.client, ["a"])
    with pytest.raises(tiltyard.PublishConflictError), tiltyard.publish(home.client) as tables:
        write(tables, ["a"], "append")
        for _ in range(2):
            write(home.client, ["a"], "append", ROWS.slice(2))
        with suppress(OSError):
            write(tables, ["a"], "append")  # Lance finds their versions in storage
        home.rename("a", "other")
        if again:
            write(home.client, ["a"])
            for _ in range(3):
                write(home.client, ["a"], "append")
    assert home.rows("other") == 5
    left = home.files("other")
    assert not any("_publishing-" in path or ".manifest-" in path for path in left)


def test_publish_that_reads_a_table_replaced_meanwhile_names_it(home: Home) -> None:
    write(home.client, ["a"])
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(home.client) as tables:
        write(tables, ["a"], "append")
        home.rename("a", "other")
        write(home.client, ["a"])
        lance.dataset(namespace_client=tables, table_id=["a"])
    assert conflict.value.tables == (("a",),)


def test_publish_that_fails_keeps_what_a_restored_version_needs_in_a_copied_folder(home: Home) -> None:
    """A copy's data may be younger than its manifests."""
    write(home.client, ["t"])
    write(home.client, ["t"], "overwrite", ROWS.slice(2))
    folder = home.location("t")
    for path in (folder / "data").iterdir():
        shutil.copyfile(path, folder / "copy")
        (folder / "copy").replace(path)
    with suppress(Stop), tiltyard.publish(home.client) as tables:
        lance.dataset(namespace_client=tables, table_id=["t"]).checkout_version(1).restore()
        raise Stop
    assert (home.rows("t", 1), home.rows("t")) == (3, 1)


def test_publish_that_fails_leaves_no_blobs(home: Home) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("content")])
    rows = pa.table({"id": [1, 2], "content": blob_array([b"x" * 5_000_000, b"y" * 200_000])}, schema=schema)
    lance.write_dataset(rows, namespace_client=home.client, table_id=["t"], data_storage_version="2.2")
    before = home.files("t")
    assert any(path.endswith(".blob") for path in before)
    with suppress(Stop), tiltyard.publish(home.client) as tables:
        lance.write_dataset(rows, namespace_client=tables, table_id=["t"], mode="append")
        assert sum(path.endswith(".blob") for path in home.files("t") - before) > 0
        raise Stop
    assert home.files("t") == before


def test_publish_deregisters_the_table_that_it_saw_and_no_other_of_its_name(home: Home) -> None:
    write(home.client, ["old"])
    with pytest.raises(tiltyard.PublishConflictError, match="old first"), tiltyard.publish(home.client) as tables:
        tables.deregister_table(DeregisterTableRequest(id=["old"]))
        home.rename("old", "kept")
        write(home.client, ["old"])
    assert (home.rows("old"), home.rows("kept")) == (3, 3)


def test_publish_declares_no_table_that_it_has_written_before_somebody_dropped_it(home: Home) -> None:
    write(home.client, ["t"])
    with suppress(Stop), tiltyard.publish(home.client) as tables:
        write(tables, ["t"], "append")
        home.drop("t")
        with pytest.raises(TableAlreadyExistsError, match="was there when this block wrote it"):
            tables.declare_table({"id": ["t"]})
        raise Stop


def test_publish_takes_no_version_of_a_thread_that_is_late(home: Home) -> None:
    write(home.client, ["t"])
    with tiltyard.publish(home.client) as tables:
        changes = tables._changes
        asked = write(tables, ["t"], "append").uri
    assert asked and home.rows("t") == 6
    [operation] = changes.operations
    assert operation.create_table_version is not None
    with pytest.raises(InvalidInputError, match="has ended"):
        changes.add_version(operation.create_table_version)


@pytest.mark.parametrize("error", [NotSentError("refused"), ThrottlingError("slowly")])
def test_publish_that_no_server_has_heard_of_leaves_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def unheard(*_: Any) -> None:
        raise error

    with pytest.raises(type(error)), tiltyard.publish(home.client) as tables:
        location = write(tables, ["new"]).uri
        monkeypatch.setattr(tables, "_send", unheard)
    assert not Path(location).exists()


def test_publish_tries_again_what_no_server_has_heard_of(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception] = [NotSentError("refused"), ThrottlingError("slowly")]

    def heard_at_last(request: BatchCommitTablesRequest, key: str | None) -> Any:
        if answers:
            raise answers.pop()
        return home.client.batch_commit_tables(request)

    with tiltyard.publish(home.client) as tables:
        write(tables, ["new"])
        monkeypatch.setattr(tables, "_send", heard_at_last)
    assert home.rows("new") == 3


def test_sender_tells_a_server_that_is_not_there_from_one_that_does_not_answer() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.seen, server.answers = [], []  # type: ignore[attr-defined]  # it breaks off: there is no answer
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = rust.RestNamespace(uri=f"http://127.0.0.1:{server.server_port}")
        send = batch_sender(client, {})
        with pytest.raises(ServiceUnavailableError, match="did not answer"):
            send(BatchCommitTablesRequest(operations=[]), "a key")
        server.shutdown()
    with pytest.raises(NotSentError, match="cannot be reached"):
        send(BatchCommitTablesRequest(operations=[]), "a key")


def test_publish_by_https_trusts_whom_it_is_told_to(tmp_path: Path) -> None:
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
