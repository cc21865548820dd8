"""The parameters that CreateTableIndex has, with what they mean, for options of commands and fields of forms; and those
that an index was built with, as Lance's details of it tell them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NUMBERS = {
    "num_partitions": "IVF: partitions of the vectors.",
    "target_partition_size": "IVF: rows of a partition, instead of their number.",
    "sample_rate": "IVF: vectors that training reads for each partition.",
    "max_iterations": "IVF: iterations of training.",
    "num_sub_vectors": "PQ: parts of a vector, a code each.",
    "num_bits": "PQ, SQ, RQ: bits of a code.",
    "m": "HNSW: neighbours of a vector in the graph.",
    "ef_construction": "HNSW: candidates for those neighbours.",
    "max_token_length": "FTS: longer words are left out.",
    "min_ngram_length": "FTS, base_tokenizer ngram: shortest part of a word.",
    "max_ngram_length": "FTS, base_tokenizer ngram: longest part of a word.",
    "block_size": "FTS: 128 or 256 documents to a block.",
}
FLAGS = {
    "with_position": "FTS: keep where words stand, for phrases.",
    "lower_case": "FTS: words in lower case.",
    "stem": "FTS: words by their stems.",
    "remove_stop_words": "FTS: leave out the words that all texts have.",
    "ascii_folding": "FTS: é as e.",
    "prefix_only": "FTS, base_tokenizer ngram: only parts from the beginning of a word.",
    "split_identifiers": "FTS, base_tokenizer code: readFile as read and file.",
    "split_on_numerics": "FTS, base_tokenizer code: utf8 as utf and 8.",
    "preserve_original": "FTS, base_tokenizer code: keep the whole identifier, too.",
    "index_operators": "FTS, base_tokenizer code: operators as words.",
}
TEXTS = {
    "base_tokenizer": "FTS: simple, whitespace, raw, ngram, code, …",
    "language": "FTS: English, German, …, for stems and stop words.",
    "lance_tokenizer": "FTS: text, or json for a column of JSON.",
    "document_granularity": "FTS: row, or list_element for each text of a list.",
}
STOP_WORDS = "custom_stop_words"
PARAMETERS = (*NUMBERS, *FLAGS, *TEXTS, STOP_WORDS)
"""All of them, by the names of the specification."""

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
