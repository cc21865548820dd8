"""How many bytes the blobs of a table have: the sizes of its data files, which hold positions alone, do not tell.

Whoever rewrites rows has to know it: their blobs are rewritten with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.columns.blob_columns import has_blobs, is_blob
from tiltyard.runtime.cache import lasting_facts

if TYPE_CHECKING:
    import lance

_BATCH_ROWS = 8192


def measure_blobs(dataset: lance.LanceDataset, fragments: Iterable[int] | None = None) -> int:
    """Return the bytes of the blobs of all rows, or of these fragments; reads where they are, once in a process.

    Raises what Lance raises.
    """
    columns = [field.name for field in dataset.schema if has_blobs([field])]
    wanted = None if fragments is None else set(fragments)
    measured = [each for each in dataset.get_fragments() if wanted is None or each.fragment_id in wanted]
    return sum(_measure(dataset, fragment, columns) for fragment in measured) if columns else 0


def _measure(dataset: lance.LanceDataset, fragment: lance.LanceFragment, columns: list[str]) -> int:
    key = ("blobs", dataset.uri, *(str(file.path) for file in fragment.metadata.files))
    size: int = lasting_facts.get_or_make(key, lambda: _read_sizes(dataset, fragment, columns))
    return size


def _read_sizes(dataset: lance.LanceDataset, fragment: lance.LanceFragment, columns: list[str]) -> int:
    size = 0
    fields = [dataset.schema.field(name) for name in columns]
    for batch in dataset.scanner(columns=columns, fragments=[fragment], batch_size=_BATCH_ROWS).to_batches():
        for field in fields:
            size += sum(pc.sum(array).as_py() or 0 for array in _descriptors(batch.column(field.name), field))
    return size


def _descriptors(array: pa.Array, field: pa.Field) -> Iterator[pa.Array]:
    """Yield the sizes in the descriptors of a field, or of those within it."""
    if is_blob(field):
        yield pc.struct_field(array, "size")
    elif pa.types.is_struct(field.type):
        for inner in field.type:
            if has_blobs([inner]):
                yield from _descriptors(pc.struct_field(array, inner.name), inner)
    elif has_blobs([field]):
        yield from _descriptors(pc.list_flatten(array), field.type.field(0))
