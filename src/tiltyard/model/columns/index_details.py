"""The options of CreateTableIndex that an index was built with, as Lance's details of it tell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiltyard.model.columns.index_parameters import PARAMETERS

DISTANCE = "distance_type"
UNTOLD = frozenset({"num_partitions", "target_partition_size"})
"""Options that a built index does not tell: how many partitions it has depends on its rows."""
_LANCE_NAMES: Mapping[str, Mapping[str, str]] = {
    "": {DISTANCE: "metric_type"},
    "hnsw": {"m": "max_connections", "ef_construction": "construction_ef"},
    "compression": {"num_bits": "num_bits", "num_sub_vectors": "num_sub_vectors"},
}
"""Where Lance's details of an index have its options, by the parts of them."""
_HINTS = {"sample_rate": ("lance.ivf.sample_rate", "256"), "max_iterations": ("lance.ivf.max_iters", "50")}
"""Options among the hints of an index, with what they are where nobody says so."""


def index_options(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of CreateTableIndex that an index was built with, as Lance or the queued build tells them."""
    hints, told = details.get("runtime_hints") or {}, dict(details)
    for part, names in _LANCE_NAMES.items():
        inner = details if part == "" else details.get(part) or {}
        told |= {name: inner[lances] for name, lances in names.items() if lances in inner}
    told |= {name: int(hints[hint]) for name, (hint, usual) in _HINTS.items() if hints.get(hint, usual) != usual}
    if isinstance(distance := told.get(DISTANCE), str):
        told[DISTANCE] = distance.lower()
    known = (DISTANCE, *PARAMETERS)
    return {name: told[name] for name in known if told.get(name) is not None and name not in UNTOLD}
