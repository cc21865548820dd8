"""Where a table's files are, and how tasks open them.

Nothing here imports the namespace client, which takes a second. Tasks open tables directly on storage, at a version
that the driver pinned: data files and manifests are the same for all. Only where credentials expire, a task requests
new ones from the namespace, through pylance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa

from tiltyard.model.columns.blob_columns import check_no_blobs
from tiltyard.pipeline.sources.filesystem import is_remote, local_path
from tiltyard.runtime.cache import cached
from tiltyard.runtime.durability import Durability
from tiltyard.runtime.failpoints import Point, reach

if TYPE_CHECKING:
    import lance_namespace

    from tiltyard.calls.caller import Caller

JOB_RETRY_SECONDS = 120.0
"""How long a call of a job under way is sent again: longer than a server that died takes to be replaced."""
JOB_ANSWER_SECONDS = 60.0
"""How long a server may be silent to such a call: the job has a lease to renew, and a call that is sent again with its
key gets the answer of the first one.
"""
EXPIRES_OPTION = "expires_at_millis"
"""The storage option that holds the expiry of the credentials."""

_HEADER_PREFIX = "header."
"""The prefix of client properties that are HTTP headers."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CatalogConnection:
    """A description of a namespace client: it can be pickled, and each process connects once.

    `implementation` and `properties` are the arguments of `lance_namespace.connect`; `storage` are the client's own
    options of the object store, which override those of the namespace. `bound` maps ids of tables to the locations that
    they must have: another table that has taken such a name is refused.
    """

    implementation: str
    properties: Pairs
    storage: Pairs = ()
    bound: Pairs = ()

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that the client sends to a server."""
        return {
            name.removeprefix(_HEADER_PREFIX): text for name, text in self.properties if name.startswith(_HEADER_PREFIX)
        }

    def client(self) -> lance_namespace.LanceNamespace:
        """Return this process's client."""
        return _connect(self.implementation, self.properties)

    def caller(self, retry_seconds: float = JOB_RETRY_SECONDS) -> Caller:
        """Return what calls the catalog's operations, of a publication those of its catalog."""
        properties = dict(self.properties)
        if "uri" not in properties:
            catalog: Any = _connect(self.implementation, self.properties)  # ours: no other has no address
            caller: Caller = catalog.caller(retry_seconds)
            return caller
        from tiltyard.calls.http_caller import HttpCaller  # noqa: PLC0415  # see above

        names = {"cert_file": "cert_file", "key_file": "key_file", "ssl_ca_cert": "ca_certs"}
        files = {name: properties.get(f"tls.{given}") for given, name in names.items()}
        tls_files = {name: path for name, path in files.items() if path}
        silence = {"answer_seconds": JOB_ANSWER_SECONDS} if retry_seconds == JOB_RETRY_SECONDS else {}
        return HttpCaller(properties["uri"], self.headers, retry_seconds=retry_seconds, tls_files=tls_files, **silence)

    def when_visible(self, call: Callable[[CatalogConnection], None]) -> None:
        """Call with a connection that sees what was committed: now, or after the end of a publication."""
        call(self)

    def locate(self, uri: str, options: Mapping[str, str], table: tuple[str, ...]) -> TableLocation:
        """Return the location of a table's files, which `options` open."""
        return TableLocation(uri, {**options, **dict(self.storage)}, self, table)


@cache
def _disks() -> Durability:
    return Durability()


@cached("catalog clients", "Clients by which tasks renew credentials", max_entries=16)
def _connect(implementation: str, properties: Pairs) -> lance_namespace.LanceNamespace:
    import lance_namespace  # noqa: PLC0415  # see above

    return lance_namespace.connect(implementation, dict(properties))


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table's folder and the options that open it, and the connection that renews them."""

    uri: str
    options: Mapping[str, str]
    connection: CatalogConnection
    table: tuple[str, ...]

    @property
    def refresh_arguments(self) -> dict[str, Any]:
        """Return arguments by which pylance renews credentials that expire; none where they do not."""
        if EXPIRES_OPTION not in self.options:
            return {}
        return {"namespace_client": self.connection.client(), "table_id": list(self.table)}

    @property
    def is_published(self) -> bool:
        """Return whether the versions that tasks open are among the table's own, so that they can be cloned."""
        return True

    def open(self, version: int | None, branch: str | None = None, block_size: int | None = None) -> lance.LanceDataset:
        """Open the table at a version (None: the newest) of a branch, to read it or to write fragments.

        `block_size` as in `indexes.tasks.block_size`. Never commit on it.
        """
        first = None if branch else version  # opening the newest version first would cost another request
        options = dict(self.options) or None
        dataset = lance.dataset(
            self.uri, first, block_size=block_size, storage_options=options, **self.refresh_arguments
        )
        return dataset.checkout_version((branch, version)) if branch else dataset

    def data_folder(self, branch: str | None) -> str:
        """Return the folder of the data files that are written on a branch, None being main."""
        return f"{self.uri}/tree/{branch}/data" if branch else f"{self.uri}/data"

    def scan(self, version: int, fragments: Sequence[int], **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some fragments at a version; `options` are those of pylance's scanner."""
        yield from scan_fragments(self.open(version), fragments, **options)

    def make_durable(self, files: Iterable[str]) -> None:
        """Check that files that this process has written are whole, and make them durable with their names.

        `files` are paths below the table's folder, those of folders end with a slash; on an object store they are
        durable already. So what a task returns can be committed, also by a run that goes on after a loss of power.
        Raises BrokenFileError, OSError.
        """
        reach(Point.WRITE)  # Lance has written files, which Python has not seen, and nothing names them yet
        if not is_remote(self.uri):
            folder = str(local_path(self.uri))
            _disks().make_durable((f"{folder}/{file}" for file in files), folder.rpartition("/")[0])

    def write_arguments(self) -> dict[str, Any]:
        """Return the arguments of `lance.fragment.write_fragments`, besides the data."""
        return {"dataset_uri": self.uri, "storage_options": dict(self.options) or None, **self.refresh_arguments}


def scan_fragments(dataset: lance.LanceDataset, fragments: Sequence[int], **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some fragments, by id; `options` are those of pylance's scanner. Raises RefusedError."""
    check_no_blobs(dataset.schema, options.get("columns"))
    fragment_ids = frozenset(fragments)
    selected = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in fragment_ids]
    yield from dataset.scanner(fragments=selected, **options).to_batches()
