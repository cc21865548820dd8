"""Where a table's files are, as tasks need to know it. Nothing here imports the namespace client: that costs a second.

Tasks open tables straight on storage, at a version that the driver pinned: data files and manifests are the same for
all. Only where credentials run out a task asks the namespace for new ones, as pylance does by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa

from tiltyard.pipeline.task_errors import RefusedError

if TYPE_CHECKING:
    import lance_namespace

EXPIRES_OPTION = "expires_at_millis"
"""The storage option that says until when the others hold."""

_BLOB_ENCODING = b"lance-encoding:blob"
"""The key of a field's metadata that says that its values lie apart."""

_HEADER_PREFIX = "header."
"""What the client's properties that are headers begin with."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Connection:
    """A namespace client, described: it can be pickled, and each process connects once.

    `implementation` and `properties` are what `lance_namespace.connect` takes; `storage` are options of the object
    store that this client brings along, over those that the namespace tells. `bound` are tables by their ids that have
    to lie where it says: another one that has such a name by now is none of this client's.
    """

    implementation: str
    properties: Pairs
    storage: Pairs = ()
    bound: Pairs = ()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the client sends to a server."""
        return {
            name.removeprefix(_HEADER_PREFIX): text for name, text in self.properties if name.startswith(_HEADER_PREFIX)
        }

    def client(self) -> lance_namespace.LanceNamespace:
        """The client of this process."""
        return _connect(self.implementation, self.properties)


@lru_cache(maxsize=16)
def _connect(implementation: str, properties: Pairs) -> lance_namespace.LanceNamespace:
    import lance_namespace  # noqa: PLC0415  # see above

    return lance_namespace.connect(implementation, dict(properties))


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table's folder and the options that open it, with the way to ask again."""

    uri: str
    options: Mapping[str, str]
    connection: Connection
    table: tuple[str, ...]

    @property
    def refresh_arguments(self) -> dict[str, Any]:
        """Arguments by which pylance renews credentials that run out; none where they do not."""
        if EXPIRES_OPTION not in self.options:
            return {}
        return {"namespace_client": self.connection.client(), "table_id": list(self.table)}

    def open(self, version: int | None, branch: str | None = None, block_size: int | None = None) -> lance.LanceDataset:
        """The table at a version (None: the newest) of a branch: to read, and to make fragments of.

        `block_size` as in `building.block_size`. Never commit on it.
        """
        first = None if branch else version  # looking for the newest one first would be a request more
        options = dict(self.options) or None
        dataset = lance.dataset(
            self.uri, first, block_size=block_size, storage_options=options, **self.refresh_arguments
        )
        return dataset.checkout_version((branch, version)) if branch else dataset

    def scan(self, version: int, fragments: Sequence[int], **options: Any) -> Iterator[pa.RecordBatch]:
        """Rows of some fragments of the table at a version; `options` are those of pylance's scanner."""
        yield from scan_fragments(self.open(version), fragments, **options)

    def write_arguments(self) -> dict[str, Any]:
        """Arguments of `lance.fragment.write_fragments`, besides the data."""
        return {"dataset_uri": self.uri, "storage_options": dict(self.options) or None, **self.refresh_arguments}


def check_no_blobs(schema: pa.Schema, columns: Collection[str] | None = None) -> None:
    """Raise RefusedError for a column of blobs among these (None: all): a scan has their places, not their bytes."""
    for field in schema:
        if (columns is None or field.name in columns) and _holds_blobs(field):
            raise RefusedError(f"Column '{field.name}' holds blobs, which jobs do not read: name the others alone.")


def _holds_blobs(field: pa.Field) -> bool:
    if (field.metadata or {}).get(_BLOB_ENCODING) == b"true" or getattr(field.type, "extension_name", "").startswith(
        "lance.blob"
    ):
        return True
    return any(_holds_blobs(field.type.field(at)) for at in range(field.type.num_fields))


def scan_fragments(dataset: lance.LanceDataset, fragments: Sequence[int], **options: Any) -> Iterator[pa.RecordBatch]:
    """Rows of some fragments, by their numbers; `options` are those of pylance's scanner. Raises RefusedError."""
    check_no_blobs(dataset.schema, options.get("columns"))
    wanted = frozenset(fragments)
    parts = [part for part in dataset.get_fragments() if part.fragment_id in wanted]
    yield from dataset.scanner(fragments=parts, **options).to_batches()
