"""The tasks of a compaction: some fragments become one."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance.optimize import CompactionTask, RewriteResult

from tiltyard.pipeline.sources.filesystem import file_exists
from tiltyard.pipeline.table_location import TableLocation

if TYPE_CHECKING:
    from tiltyard.pipeline.runs import Run


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A task: some fragments become one. `indexes` are the ids of all segments of indexes as it was planned."""

    location: TableLocation
    task: CompactionTask
    indexes: tuple[str, ...]

    def __call__(self) -> RewriteResult:
        """What the driver commits."""
        return self.task.execute(self.location.open(self.task.read_version))

    @property
    def key(self) -> str:
        """The same for the same fragments with the same rows, under the same indexes: what is kept is found by this.

        What was rewritten before an index was built knows nothing of that, and can be committed no more.
        """
        told = json.dumps([[one.to_json() for one in self.task.fragments], self.indexes], sort_keys=True)
        return f"compacted-{hashlib.sha256(told.encode()).hexdigest()[:32]}"

    def kept(self, run: Run) -> RewriteResult | None:
        """What this run has rewritten before, if its files are still there: nobody but `gc` takes them."""
        if (text := run.checkpoints().get(self.key)) is None:
            return None
        told = zlib.decompress(base64.b64decode(text)).decode()
        found: RewriteResult = RewriteResult.from_json(told)  # type: ignore[attr-defined]  # not in pylance's stubs
        files = [file.path for one in found.new_fragments for file in one.files]
        there = all(file_exists(f"{self.location.uri}/data/{file}", self.location.options) for file in files)
        return found if there else None

    def keep(self, run: Run, result: RewriteResult) -> None:
        """Remember it; small, for it tells where each row has gone."""
        text: str = result.json()  # type: ignore[attr-defined]  # the same
        run.save_checkpoint(self.key, base64.b64encode(zlib.compress(text.encode())).decode())
