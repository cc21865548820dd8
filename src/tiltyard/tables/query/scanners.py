"""Lance's scanners, made at the cost of a small query.

`LanceDataset.scanner` copies every option deeply, for `to_pandas` to begin anew, and reads the schema for each query
vector: more than Lance itself takes to plan a small query, and all of it with the interpreter's lock held. In the end
it makes one call with what it was given; for plain options that call is made here.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance.dataset import LanceScanner, ScannerBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance

_PLAIN = frozenset(
    {
        "batch_readahead",
        "batch_size",
        "batch_size_bytes",
        "columns",
        "disable_scoring_autoprojection",
        "filter",
        "io_buffer_size",
        "limit",
        "nearest",
        "offset",
        "prefilter",
        "with_row_id",
    }
)
"""Options that mean to Lance's own scanner what they mean to pylance's, as long as they have the `_PLAIN_KINDS`."""
_PLAIN_KINDS = (list, str, int)


def make_scanner(
    dataset: lance.LanceDataset, options: Mapping[str, Any], nearest: Mapping[str, Any] | None = None
) -> LanceScanner:
    """A scanner with the options of `LanceDataset.scanner`, whose `nearest` was checked before. Raises Lance's errors.

    A query vector is an array as its column takes it, or a list of them.
    """
    native: Any = dataset._ds
    if _is_plain(options, nearest) and _takes_plain(native.__class__):
        return LanceScanner(native.scanner(**options, nearest=nearest), dataset)
    if nearest is None:
        return dataset.scanner(**options)
    return _searching(dataset, options, nearest)


def _is_plain(options: Mapping[str, Any], nearest: Mapping[str, Any] | None) -> bool:
    if nearest is not None and not isinstance(nearest["q"], (pa.FloatingPointArray, pa.Int8Array)):
        return False
    return _PLAIN.issuperset(options) and all(isinstance(value, _PLAIN_KINDS) for value in options.values())


@cache
def _takes_plain(native: type) -> bool:
    """Whether this pylance's own scanner knows the options by these names: they are no public interface of it."""
    return _PLAIN.issubset(inspect.signature(native.scanner).parameters)  # type: ignore[attr-defined]  # compiled


def _searching(dataset: lance.LanceDataset, options: Mapping[str, Any], nearest: Mapping[str, Any]) -> LanceScanner:
    """A scanner with a vector search, the public way.

    pylance makes float32 of integers, which Lance refuses for a column of int8: there the vector is put in afterwards.
    """
    if not isinstance(nearest["q"], pa.Int8Array):
        return dataset.scanner(nearest=dict(nearest), **options)
    builder = ScannerBuilder(dataset)
    for name, value in options.items():
        getattr(builder, name)(value)
    builder.nearest(**nearest)
    prepared: Any = builder._nearest
    prepared["q"] = nearest["q"]
    return builder.to_scanner()
