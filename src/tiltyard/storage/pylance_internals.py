"""Call what pylance has and does not publish, in this one place: a next version may not have it.

What each is worth stands with it. `tests/unit/test_private_names.py` fails where another version than the tested one is
installed, and says what to look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lance.schema import LanceSchema

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.dataset import ScannerBuilder

TESTED_PYLANCE = "14.0.2"
"""The version that all of this was tested with."""

data_file_path = attrgetter("_path")
"""Returns the path of a DataFile; `path`, which is public, makes a class each time: five times as long."""


def native_dataset(dataset: lance.LanceDataset) -> Any:
    """Return the compiled dataset: it makes a scanner from options at once, and has the bytes of its manifest."""
    return dataset._ds


def take_rows(dataset: lance.LanceDataset, row_ids: Sequence[int], columns: Sequence[str]) -> pa.Table:
    """Return columns of rows by their ids; what is public takes their positions."""
    return dataset._take_rows(list(row_ids), columns=list(columns))


def set_query_vector(builder: ScannerBuilder, vector: pa.Array) -> None:
    """Set the vector of a search, of any type; `nearest` turns integers into float32."""
    prepared: Any = builder._nearest
    prepared["q"] = vector


def schema_of_protos(metadata: Any, *fields: Any) -> LanceSchema:
    """Return a schema from its metadata and its fields, as a manifest has them, with the ids that they have there."""
    schema: LanceSchema = LanceSchema._from_protos(metadata, *fields)
    return schema
