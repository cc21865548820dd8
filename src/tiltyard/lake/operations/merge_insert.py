"""Rows merged into a table by a key, as lancedb says how: `merge_insert("id").when_matched_update_all().execute(rows)`.

`Table.upsert` is the job of the pipeline for the usual case, with checks and rejects, and for files, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from lance_namespace.errors import InvalidInputError

from tiltyard.lake.sources import Source, is_frame, open_stream, path_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.lake.runs import Run


class MergeInsert:
    """What becomes of rows whose key both sides have, or one of them; what is not said leaves them as they are."""

    def __init__(self, on: list[str] | None, send: Callable[[pa.RecordBatchReader, Mapping[str, Any]], Run]) -> None:
        """`send` sends rows with the fields of MergeInsertIntoTable."""
        self._fields: dict[str, Any] = {"on": on, "when_not_matched_insert_all": False}
        self._send = send

    def when_matched_update_all(self, where: str | None = None) -> Self:
        """Replace rows of the table that have the key of a new row; `where` is SQL over `target` and `source`."""
        self._fields.update(when_matched_update_all=True, when_matched_update_all_filt=where)
        return self

    def when_not_matched_insert_all(self) -> Self:
        """Insert new rows whose key the table lacks."""
        self._fields.update(when_not_matched_insert_all=True)
        return self

    def when_not_matched_by_source_delete(self, condition: str | None = None) -> Self:
        """Delete rows of the table whose key no new row has, or those of them that meet an SQL condition."""
        self._fields.update(when_not_matched_by_source_delete=True, when_not_matched_by_source_delete_filt=condition)
        return self

    def execute(self, new_data: Source) -> Run:
        """Merge rows of this process, in one commit. The figures count what was `updated`, `inserted`, `deleted`.

        Raises InvalidInputError, TableNotFoundError, ConcurrentModificationError.
        """
        if path_of(new_data) is not None or is_frame(new_data):
            raise InvalidInputError("new_data are rows of this process: upsert takes files and DataFrames of Spark.")
        return self._send(open_stream(new_data), self._fields)
