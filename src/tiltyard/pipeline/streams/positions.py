"""The position of a stream, recorded in its table: each commit carries what it has read.

A commit of a stream has the stream's name and the advanced parts of its position as properties of its Lance
transaction, so rows and position become visible together. The table's configuration, which later versions inherit, has
a record of the whole position and the id of the process that writes the stream. While it writes, the position is the
record and what the commits after it have advanced; once it has stopped in order, the record alone, and history may be
collected. A process writes only while the newest version names it: another one that takes over shuts it out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance import LanceOperation
from lance_namespace.errors import InvalidTableStateError

from tiltyard.change_feed.table_history import read_transaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance

    from tiltyard.pipeline.streams.batches import Position

STREAM_PROPERTY = "tiltyard.stream"
POSITION_PROPERTY = "tiltyard.stream.position"
_RECORD_PREFIX, _WRITER_PREFIX = "tiltyard.stream.", "tiltyard.stream-writer."


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """A stream's position in all versions of its table up to `version`; `writer` is "" once its process has stopped."""

    version: int
    position: Position
    writer: str = ""

    def to_config(self, stream: str) -> dict[str, str | None]:
        """Return the entries of the table's configuration."""
        text = json.dumps({"version": self.version, "position": dict(self.position)}, separators=(",", ":"))
        return {f"{_RECORD_PREFIX}{stream}": text, f"{_WRITER_PREFIX}{stream}": self.writer}


def commit_properties(stream: str, advanced: Position) -> dict[str, str]:
    """Return the properties of a commit that has advanced a stream."""
    return {STREAM_PROPERTY: stream, POSITION_PROPERTY: json.dumps(dict(advanced), separators=(",", ":"))}


def find_writer(dataset: lance.LanceDataset, stream: str) -> str:
    """Return the id of the process that writes a stream; "" for none."""
    return str(dataset.config().get(f"{_WRITER_PREFIX}{stream}", ""))


def find_position(dataset: lance.LanceDataset, stream: str) -> Position | None:
    """Return the position that a table has recorded for a stream; None for one that has not begun.

    Commits that a restore has undone do not count. Raises InvalidTableStateError where versions were collected that may
    hold a part of it.
    """
    record = _read_record(dataset, stream)
    if record is None or not record.writer:
        return None if record is None else record.position
    advanced: list[Position] = []
    version = int(dataset.version)
    while version > record.version:
        transaction = read_transaction(dataset, version)
        if transaction is None:
            raise InvalidTableStateError(
                f"The process of the stream '{stream}' ended without recording its position, and version {version} of "
                "the table, which may have it, was collected. Look at the table's newest rows, and start a stream of "
                "another name (--name) with what is missing."
            )
        if isinstance(transaction.operation, LanceOperation.Restore):
            version = transaction.operation.version
            continue
        properties: Mapping[str, str] = transaction.transaction_properties or {}
        if properties.get(STREAM_PROPERTY) == stream:
            advanced.append(json.loads(properties[POSITION_PROPERTY]))
        version -= 1
    position = dict(record.position)
    for part in reversed(advanced):
        position.update(part)
    return position


def _read_record(dataset: lance.LanceDataset, stream: str) -> PositionRecord | None:
    text = dataset.config().get(f"{_RECORD_PREFIX}{stream}")
    if text is None:
        return None
    fields = json.loads(text)
    return PositionRecord(int(fields["version"]), fields["position"], find_writer(dataset, stream))
