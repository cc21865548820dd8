"""The changes of a table between two versions, as people read them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.change_feed.groups import CHANGE, VERSION
from tiltyard.change_feed.reader import read_changes
from tiltyard.lake.display import render_table
from tiltyard.lake.errors import translate

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    from tiltyard.pipeline.table_changes import ChangeFeed


class Changes:
    """Rows that were inserted, updated and deleted after the version `since`, up to `until`.

    Each has `_change` (`insert`, `update_before`, `update_after`, `delete`), the `_version` that made the change, its
    `_timestamp`, and the table's columns. They are in the order of versions. Nothing is read before it is needed.
    """

    def __init__(self, name: str, feed: ChangeFeed, to_frame: Callable[[dict[str, str]], DataFrame]) -> None:
        self._name = name
        self._feed = feed
        self._to_frame = to_frame

    @property
    def since(self) -> int:
        """Return the version after which changes are read."""
        return self._feed.plan.since

    @property
    def until(self) -> int:
        """Return the last version whose changes are read."""
        return self._feed.plan.until

    @property
    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self._feed.plan.schema

    def to_batches(self) -> pa.RecordBatchReader:
        """Read the changes batch by batch. Raises InvalidInputError for a value that no longer fits its column."""
        batches = read_changes(self._feed.plan.groups, self.schema, self._feed.open_version)
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_arrow(self) -> pa.Table:
        """Read the changes into memory. Raises as `to_batches`."""
        with translate():
            return self.to_batches().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """Read the changes into a frame of pandas. Raises as `to_batches`."""
        return self.to_arrow().to_pandas()

    def to_spark(self) -> DataFrame:
        """Return the changes as a DataFrame of Spark, whose tasks read them. Raises SparkMissingError."""
        branch = {"branch": self._feed.branch} if self._feed.branch else {}
        return self._to_frame(
            {
                "changes": "true",
                "since": str(self.since),
                "until": str(self.until),
                "columns": json.dumps(self.schema.names[3:]),
                "on": json.dumps(self._feed.on),
                **branch,
            }
        )

    def counts(self) -> dict[int, dict[str, int]]:
        """Return how many rows each version has changed, by `_change`."""
        counts: dict[int, Counter[str]] = {}
        with translate():
            for batch in self.to_batches():
                if batch.num_rows:
                    kinds = counts.setdefault(batch[VERSION][0].as_py(), Counter())  # a batch is of one version
                    kinds.update(batch[CHANGE].to_pylist())
        return {version: dict(kinds) for version, kinds in counts.items()}

    def __repr__(self) -> str:
        return f"<changes of {self._name} after version {self.since}, up to {self.until}>"

    def _repr_html_(self) -> str:
        rows = [(version, kind, number) for version, kinds in self.counts().items() for kind, number in kinds.items()]
        return render_table((VERSION, CHANGE, "rows"), rows)
