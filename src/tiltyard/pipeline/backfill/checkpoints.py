"""Checkpoints within a fragment: the next attempt of its task reads values that are computed, and computes the others.

Each is a file of Arrow batches, one for each call of the function, beside the table's data files, named by what the
values depend on and by the number of its first call. Garbage collection deletes those that no attempt has used up.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.column_refresh.fragment_files import ComputedRows, FragmentPlan, RowError
from tiltyard.pipeline.sources.filesystem import delete_files, file_exists, open_file, write_file

if TYPE_CHECKING:
    import lance

CHECKPOINT_SECONDS = 30.0
"""How long a function computes values until they are saved."""
MAX_UNSAVED_BYTES = 64 << 20
"""So many bytes of values are saved earlier."""

log = logging.getLogger("tiltyard.backfill")


def checkpoint_key(run_id: str, dataset: lance.LanceDataset, plan: FragmentPlan, batch_rows: int) -> str:
    """Return a digest of what decides which rows are computed, in which calls: the run, the fragment, the plan.

    The names of a plan's files hold digests of the code.
    """
    fragment = dataset.get_fragment(plan.fragment_id)
    assert fragment is not None
    files = [(file.column, int(file.state), file.name.rpartition("-")[2]) for file in plan.files]
    facts = [run_id, fragment.metadata.to_json(), files, plan.where, batch_rows]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@dataclass(slots=True)
class CheckpointedCalls:
    """The calls of a function for one fragment, in order; those that an earlier attempt has saved are not repeated.

    `path` is that of the files without their numbers and endings, `schema` has the columns that are computed.
    """

    path: str
    schema: pa.Schema
    storage: Mapping[str, str]
    _number: int = 0
    _files: list[str] = field(default_factory=list)
    _saved: Iterator[tuple[Sequence[Any], ComputedRows]] | None = None
    _unsaved: list[tuple[Sequence[Any], ComputedRows]] = field(default_factory=list)
    _unsaved_bytes: int = 0
    _saved_at: float = 0.0
    _is_usable: bool = True

    def __post_init__(self) -> None:
        self._saved = self._read()
        self._saved_at = time.monotonic()

    def call(self, rows: pa.RecordBatch, compute: Callable[[pa.RecordBatch], ComputedRows]) -> ComputedRows:
        """Return the values of the next rows, saved or computed. Raises what `compute` raises."""
        ids = rows.column("_rowid")
        identity = [rows.num_rows, ids[0].as_py(), ids[-1].as_py()]
        if self._saved is not None:
            saved = next(self._saved, None)
            if saved is not None and list(saved[0]) == identity:
                self._number += 1
                return saved[1]
            self._saved = None
            self._saved_at = time.monotonic()
        computed = compute(rows)
        self._number += 1
        if self._is_usable:
            self._unsaved.append((identity, computed))
            self._unsaved_bytes += sum(column.nbytes for column in computed.columns)
            is_due = time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS
            if is_due or self._unsaved_bytes >= MAX_UNSAVED_BYTES:
                self._save()
        return computed

    def delete(self) -> None:
        """Delete the files that were read and written: the fragment is done."""
        try:
            delete_files(self._files, self.storage)
        except Exception as error:  # noqa: BLE001  # of any object store; garbage collection deletes them
            log.warning("checkpoints of a backfill are left to garbage collection: %s", error)

    def _file(self, number: int) -> str:
        return f"{self.path}.{number}.arrow"

    def _read(self) -> Iterator[tuple[Sequence[Any], ComputedRows]]:
        """Yield the saved calls; a file that cannot be read is computed again."""
        number = 0
        try:
            while file_exists(path := self._file(number), self.storage):
                self._files.append(path)
                with open_file(path, self.storage) as file, pa.ipc.open_stream(file) as stream:
                    while True:
                        try:
                            batch, metadata = stream.read_next_batch_with_custom_metadata()
                        except StopIteration:
                            break
                        facts = json.loads(metadata["call"])
                        errors = tuple(RowError(*error) for error in facts["errors"])
                        yield facts["rows"], ComputedRows(tuple(batch.columns), facts["failed"], errors)
                        number += 1
        except (OSError, pa.ArrowInvalid) as error:
            log.warning("a checkpoint of a backfill cannot be read, and its rows are computed again: %s", error)

    def _save(self) -> None:
        """Write the unsaved calls to a file. Without it more is computed again, so nothing fails."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema) as stream:
            for rows, computed in self._unsaved:
                errors = [(error.row, error.kind, error.message) for error in computed.errors]
                call = json.dumps({"rows": rows, "failed": computed.failed, "errors": errors})
                batch = pa.record_batch(list(computed.columns), schema=self.schema)
                stream.write_batch(batch, custom_metadata={"call": call})
        path = self._file(self._number - len(self._unsaved))
        self._unsaved, self._unsaved_bytes, self._saved_at = [], 0, time.monotonic()
        try:
            write_file(path, sink.getvalue().to_pybytes(), self.storage)
        except Exception as error:  # noqa: BLE001  # of any object store, such as credentials that have expired
            log.warning("no more checkpoints of a fragment are saved: %s", error)
            self._is_usable = False
        else:
            self._files.append(path)
