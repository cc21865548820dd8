"""The groups of a view's query that changed rows are in: values of columns by which the query groups a table."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.runtime.client_arrow.reading import to_ipc
from tiltyard.view_refresh.net_rows import is_filtered_type
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError

_MAX_BYTES = 1 << 20
"""The size of the values of a column at most: the run's checkpoint has them."""


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The groups with these `values` of each column of `table`; `names` are those that the columns have in the view."""

    table: str
    names: Mapping[str, str]
    values: Mapping[str, pa.Array]

    @property
    def view_values(self) -> Mapping[str, pa.Array]:
        """Return the values by the view's names of the columns."""
        return {self.names[column]: values for column, values in self.values.items()}

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` takes, for the run's checkpoint."""
        columns = {name: pa.array([values], pa.list_(values.type)) for name, values in self.values.items()}
        values = base64.b64encode(to_ipc(pa.RecordBatch.from_pydict(columns))).decode()
        return {"table": self.table, "names": dict(self.names), "values": values}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> GroupKeys:
        """Return the keys of a checkpoint."""
        batch = pa.ipc.open_stream(base64.b64decode(str(fields["values"]))).read_next_batch()
        names = fields["names"]
        assert isinstance(names, dict)
        values = {name: batch.column(name).flatten() for name in batch.schema.names}
        return cls(str(fields["table"]), names, values)


def usable_keys(columns: Mapping[str, str], source: pa.Schema, view: pa.Schema) -> dict[str, str]:
    """Return the columns whose values storage finds in the source and in the view, where they have another name."""
    return {
        column: name
        for column, name in columns.items()
        if name in view.names
        and is_filtered_type(source.field(column).type)
        and source.field(column).type == view.field(name).type
    }


def find_groups(table: str, names: Mapping[str, str], rows: Iterable[pa.RecordBatch], max_groups: int) -> GroupKeys:
    """Return the groups of changed rows, which are read no further than needed.

    A column that has more values is left out: the groups are then those of the others' values. Raises
    FullRefreshRequiredError if all columns have.
    """
    values = dict.fromkeys(names, pa.nulls(0))
    for batch in rows:
        for column, earlier in list(values.items()):
            new = batch.column(column)
            merged = pc.unique(pa.concat_arrays([earlier.cast(new.type), new]))
            if len(merged) > max_groups or merged.nbytes > _MAX_BYTES:
                del values[column]
            else:
                values[column] = merged
        if not values:
            raise FullRefreshRequiredError(
                f"changed rows of {table} have more than {max_groups:,} values, or 1 MiB of them, in {', '.join(names)}"
            )
    return GroupKeys(table, {column: names[column] for column in values}, values)
