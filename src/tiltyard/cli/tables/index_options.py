"""The options of `tiltyard index create`: one for each parameter that CreateTableIndex has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_NUMBERS = {
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
_FLAGS = {
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
_TEXTS = {
    "base_tokenizer": "FTS: simple, whitespace, raw, ngram, code, …",
    "language": "FTS: English, German, …, for stems and stop words.",
    "lance_tokenizer": "FTS: text, or json for a column of JSON.",
    "document_granularity": "FTS: row, or list_element for each text of a list.",
}
STOP_WORDS = "custom_stop_words"
PARAMETERS = (*_NUMBERS, *_FLAGS, *_TEXTS, STOP_WORDS)
"""All of them, by the names of the specification."""


def parameter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each parameter; the command gets them by their names, None for those that are left out."""
    options = [_option(name, text, type=click.IntRange(min=0), metavar="N") for name, text in _NUMBERS.items()]
    options += [
        click.option(f"{_flag(name)}/--no-{_flag(name)[2:]}", name, default=None, help=text)
        for name, text in _FLAGS.items()
    ]
    options += [_option(name, text) for name, text in _TEXTS.items()]
    options.append(_option(STOP_WORDS, "FTS: words to leave out, besides.", metavar="A,B,…"))
    for add in reversed(options):
        command = add(command)
    return command


def given_parameters(values: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given, as requests have them."""
    given = {name: values[name] for name in PARAMETERS if values[name] is not None}
    if STOP_WORDS in given:
        given[STOP_WORDS] = [word.strip() for word in given[STOP_WORDS].split(",") if word.strip()]
    return given


def _option(name: str, text: str, **attributes: Any) -> Callable[..., Any]:
    return click.option(_flag(name), name, default=None, help=text, **attributes)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
