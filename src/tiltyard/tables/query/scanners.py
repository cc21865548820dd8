"""Create Lance's scanners without the overhead of pylance's builder.

`LanceDataset.scanner` copies every option deeply, so that `to_pandas` can start again, and reads the schema for each
query vector: more work than Lance itself needs to plan a small query, and all of it under the GIL. In the end it makes
one native call with the same options; for plain options that call is made here.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance.dataset import LanceScanner, ScannerBuilder
from lance.query import FullTextQuery

from tiltyard.runtime.cache import cached
from tiltyard.storage.pylance_internals import native_dataset, set_query_vector

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance

_NATIVE_OPTIONS = frozenset(
    {
        "batch_readahead",
        "batch_size",
        "batch_size_bytes",
        "columns",
        "disable_scoring_autoprojection",
        "fast_search",
        "filter",
        "full_text_query",
        "index_segments",
        "io_buffer_size",
        "limit",
        "nearest",
        "offset",
        "prefilter",
        "with_row_id",
    }
)
"""Options with the same meaning for the native scanner as for pylance's, as long as they have `_NATIVE_TYPES`."""
_NATIVE_TYPES = (list, str, int, FullTextQuery)


def make_scanner(
    dataset: lance.LanceDataset, options: Mapping[str, Any], nearest: Mapping[str, Any] | None = None
) -> LanceScanner:
    """Create a scanner with the options of `LanceDataset.scanner`; `nearest` was checked before.

    A query vector is an array of the type that its column takes; a list of them is one query of a multivector column, a
    ListArray of them a batch of queries. Raises Lance's errors.
    """
    native = native_dataset(dataset)
    if _has_native_options(options, nearest) and _native_scanner_accepts(native.__class__):
        if (text := options.get("full_text_query")) is not None:
            options = {**options, "full_text_query": text.inner}
        return LanceScanner(native.scanner(**options, nearest=nearest), dataset)
    if nearest is None:
        return dataset.scanner(**options)
    return _make_vector_scanner(dataset, options, nearest)


def _has_native_options(options: Mapping[str, Any], nearest: Mapping[str, Any] | None) -> bool:
    if nearest is not None and not isinstance(nearest["q"], (pa.FloatingPointArray, pa.Int8Array, pa.ListArray)):
        return False
    return _NATIVE_OPTIONS.issuperset(options) and all(isinstance(value, _NATIVE_TYPES) for value in options.values())


@cached("native scanners", "Whether Lance's own scanner has the options that are given to it", max_entries=4)
def _native_scanner_accepts(native: type) -> bool:
    """Return whether the native scanner of this pylance has the options by these names: they are not public."""
    return _NATIVE_OPTIONS.issubset(inspect.signature(native.scanner).parameters)  # type: ignore[attr-defined]  # compiled


def _make_vector_scanner(
    dataset: lance.LanceDataset, options: Mapping[str, Any], nearest: Mapping[str, Any]
) -> LanceScanner:
    """Create a scanner with a vector search through pylance's public interface.

    pylance converts integers to float32, which Lance refuses for a column of int8: there the vector is set afterwards.
    """
    if not isinstance(nearest["q"], pa.Int8Array):
        return dataset.scanner(nearest=dict(nearest), **options)
    builder = ScannerBuilder(dataset)
    for name, value in options.items():
        getattr(builder, name)(value)
    builder.nearest(**nearest)
    set_query_vector(builder, nearest["q"])
    return builder.to_scanner()
