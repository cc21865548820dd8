"""The types of indices: their names, the columns that they support, and their parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import lance
import pyarrow as pa
import pyarrow.types as of
from lance_namespace.errors import InvalidInputError

from tiltyard.model.columns.vector_columns import VectorColumn
from tiltyard.model.schemas.nested_types import is_text, storage_type
from tiltyard.model.spec import models

Parameters = dict[str, Any]


class IndexType(StrEnum):
    """The types of indices, by the names of the specification."""

    IVF_FLAT = "IVF_FLAT"
    IVF_SQ = "IVF_SQ"
    IVF_PQ = "IVF_PQ"
    IVF_RQ = "IVF_RQ"
    IVF_HNSW_FLAT = "IVF_HNSW_FLAT"
    IVF_HNSW_SQ = "IVF_HNSW_SQ"
    IVF_HNSW_PQ = "IVF_HNSW_PQ"
    BTREE = "BTREE"
    BITMAP = "BITMAP"
    LABEL_LIST = "LABEL_LIST"
    NGRAM = "NGRAM"
    ZONEMAP = "ZONEMAP"
    BLOOMFILTER = "BLOOMFILTER"
    FM = "FM"
    RTREE = "RTREE"
    MINHASHLSH = "MINHASHLSH"
    FTS = "FTS"

    @property
    def is_vector(self) -> bool:
        """Whether it is an index for nearest-neighbour queries."""
        return self.value.startswith("IVF_")

    @property
    def quantizer(self) -> str:
        """The quantizer of a vector index: FLAT, SQ, PQ or RQ."""
        return self.value.rpartition("_")[2]

    @property
    def is_distributed(self) -> bool:
        """Whether Spark can build it, in parts: Lance has no parts of the others."""
        return self not in (IndexType.FM, IndexType.RTREE, IndexType.MINHASHLSH)


_SYNONYMS = {"vector": IndexType.IVF_PQ, "inverted": IndexType.FTS, "scalar": IndexType.BTREE}
_BY_NAME = _SYNONYMS | {kind.value.replace("_", "").lower(): kind for kind in IndexType}

_IVF = ("num_partitions", "sample_rate", "max_iterations", "target_partition_size")
_TOKENIZER = (
    *("base_tokenizer", "language", "max_token_length", "lower_case", "stem", "remove_stop_words", "custom_stop_words"),
    *("ascii_folding", "min_ngram_length", "max_ngram_length", "prefix_only"),
    *("split_identifiers", "split_on_numerics", "preserve_original", "index_operators"),
)
GRANULARITY, LIST_ELEMENT = "document_granularity", "list_element"
"""The parameter of FTS that says what a document is, and its value for each text of a list; the default is `row`."""
_FTS = (*_TOKENIZER, "with_position", "block_size", "lance_tokenizer", GRANULARITY)
_DISTANCE = ("metric", "distance_type")
_OF_HNSW = ("m", "ef_construction")
_M, _EF_CONSTRUCTION = 20, 150
"""Lance's defaults for them."""
_MIN_CONNECTIONS = 4
_OF_QUANTIZER = {"FLAT": (), "SQ": ("num_bits",), "RQ": ("num_bits",), "PQ": ("num_bits", "num_sub_vectors")}
_NGRAM_NAMES = {"ngram_min_length": "min_ngram_length", "ngram_max_length": "max_ngram_length"}
_BASE_TOKENIZER = re.compile(r"\w+(/[\w-]+)*", re.ASCII)
"""A tokenizer's name. Lance reads what follows `jieba/` and `lindera/` as a path below its folder of models."""
_KEEP_STOP_WORDS = frozenset({"ngram", "code"})
"""Tokenizers whose default is not to remove stop words."""
_EXTENSION = b"ARROW:extension:name"
_CODE_FLAGS = ("split_identifiers", "split_on_numerics", "preserve_original", "index_operators")
_ALL = frozenset({*_IVF, *_FTS, *_OF_HNSW, "num_bits", "num_sub_vectors"})


def parse_index_type(name: str) -> IndexType:
    """Return the type of this name, in any case, with or without underscores. Raises InvalidInputError."""
    if index_type := _BY_NAME.get(name.replace("_", "").replace("-", "").lower()):
        return index_type
    raise InvalidInputError(f"Unknown index type '{name}': choose one of {', '.join(IndexType)}.")


def spec_index_type(lance_type: str) -> str:
    """Return the specification's name for Lance's name of a type: BTree → BTREE, Inverted → FTS."""
    index_type = _BY_NAME.get(lance_type.replace("_", "").lower())
    return index_type.value if index_type else lance_type.upper()


def check_parameter_names(type_name: str, names: Iterable[str]) -> None:
    """Raise InvalidInputError for an unknown type, and for the name of a parameter that an index of it does not have.

    Here a distance type (`metric`) is one of vector indexes: to ignore it would hide that it has no effect.
    """
    kind = parse_index_type(type_name)
    allowed = (*parameter_names(kind), *(_DISTANCE if kind.is_vector else ()))
    for name in names:
        known = _NGRAM_NAMES.get(name, name)
        if known not in _ALL and known not in _DISTANCE:
            raise InvalidInputError(f"An index has no parameter '{name}': they are those of CreateTableIndex.")
        if known not in allowed:
            raise InvalidInputError(f"{kind.value} takes no {name}: {_list_names(allowed)}.")


def parameter_names(kind: IndexType) -> tuple[str, ...]:
    """Return the parameters that an index of a type has, besides its distance."""
    if not kind.is_vector:
        return _FTS if kind is IndexType.FTS else ()
    return (*_IVF, *_OF_QUANTIZER[kind.quantizer], *(_OF_HNSW if "HNSW" in kind else ()))


def check_parameters(kind: IndexType, field: pa.Field, request: models.CreateTableIndexRequest) -> Parameters:
    """Return the parameters of the request, all checked against the type and the column.

    A distance type, which means nothing to a scalar or full-text index, is left out. Raises InvalidInputError for a
    column that the type does not support, and for a parameter that it does not have or that is invalid.
    """
    values = _request_values(request)
    allowed = parameter_names(kind)
    if unknown := sorted(set(values) - set(allowed)):
        raise InvalidInputError(f"{kind.value} takes no {unknown[0]}: {_list_names(allowed)}.")
    if not _is_supported(kind, field):
        needed = _VECTORS if kind.is_vector else _NEEDS[kind]
        raise InvalidInputError(
            f"{kind.value} needs {needed}, and '{field.name}' is {field.type}. {_describe_fitting(field)}"
        )
    if kind.is_vector:
        _check_graph(kind, values)
        return values | VectorColumn.for_index(field).index_parameters(
            kind.value, kind.quantizer, request.distance_type, values
        )
    return _check_tokenizer(values, field) if kind is IndexType.FTS else values


def fitting_types(field: pa.Field) -> list[IndexType]:
    """Return the types of which a column can have an index, the one to begin with first; none for a struct or a map."""
    return [kind for kind in PURPOSES if _fits(kind, field)]


def _fits(kind: IndexType, field: pa.Field) -> bool:
    """Return whether an index of this type, with its defaults, can be built on a column."""
    if not _is_supported(kind, field):
        return False
    if kind.is_vector:
        try:
            VectorColumn.for_index(field).index_parameters(kind.value, kind.quantizer, None, {})
        except InvalidInputError:  # bytes have no quantizer, RQ takes lengths of eights
            return False
    return True


def _is_supported(kind: IndexType, field: pa.Field) -> bool:
    if kind.is_vector:
        return VectorColumn.is_indexable(field)
    return _is_geometry(field) if kind is IndexType.RTREE else _SUPPORTS[kind](field.type)


def _describe_fitting(field: pa.Field) -> str:
    """Return a sentence on the types that fit a column."""
    found = fitting_types(field)
    if not found:
        return "No index can be built on it: index a field within it, if it has some."
    named = [f"{kind} ({PURPOSES[kind]})" for kind in found if not kind.is_vector or kind is found[0]]
    others = " or another IVF_… type" if sum(kind.is_vector for kind in found) > 1 else ""
    return f"What fits it: {', '.join(named)}{others}."


def _check_graph(kind: IndexType, values: Parameters) -> None:
    """Raise InvalidInputError for a graph that Lance's builder refuses."""
    connections, candidates = values.get("m", _M), values.get("ef_construction", _EF_CONSTRUCTION)
    if "HNSW" in kind and not _MIN_CONNECTIONS <= connections <= candidates:
        raise InvalidInputError(
            f"{kind.value} takes an m of {_MIN_CONNECTIONS} or more and an ef_construction that is no smaller; "
            f"m is {connections}, ef_construction {candidates}."
        )


def _request_values(request: models.CreateTableIndexRequest) -> Parameters:
    values: Parameters = {}
    for name in request.__struct_fields__:
        key, value = _NGRAM_NAMES.get(name, name), getattr(request, name)
        if key not in _ALL or value is None:
            continue
        if values.get(key, value) != value:
            raise InvalidInputError(f"{name} and {key} disagree: give one of them.")
        values[key] = value
    return values


def _list_names(names: tuple[str, ...]) -> str:
    return f"it takes {', '.join(names)}" if names else "it takes no parameters"


def _check_tokenizer(values: Parameters, field: pa.Field) -> Parameters:
    """Return the parameters, normalized, once a tokenizer was made of them. Raises InvalidInputError."""
    if "language" in values:
        values["language"] = values["language"].title()
    if values.get("base_tokenizer") != "code":  # lancedb always sends these flags
        values = {name: value for name, value in values.items() if name not in _CODE_FLAGS or value}
    base = values.get("base_tokenizer")
    if base is not None and not _BASE_TOKENIZER.fullmatch(base):
        raise InvalidInputError(f"base_tokenizer is a name such as 'simple' or 'jieba/default', not '{base}'.")
    removes_stop_words = values.get("remove_stop_words", base not in _KEEP_STOP_WORDS)
    if values.get("custom_stop_words") and not removes_stop_words:  # Lance would leave them out without a word
        raise InvalidInputError(
            "custom_stop_words are removed with remove_stop_words alone: set it, or leave them out."
        )
    _check_granularity(values, field)
    if values.get("block_size", 128) not in (128, 256):
        raise InvalidInputError("block_size is 128 or 256.")
    if values.get("lance_tokenizer") not in (None, "json" if _is_json(field.type) else "text"):
        raise InvalidInputError("lance_tokenizer is 'text', and 'json' for a column of JSON: leave it out.")
    try:
        lance.tokenize("", **{name: values[name] for name in _TOKENIZER if name in values})
    except ValueError as error:
        raise InvalidInputError(f"This tokenizer cannot be: {_reason(error)}.") from error
    return values


def _check_granularity(values: Parameters, field: pa.Field) -> None:
    """Check what a document is, and normalize it. Raises InvalidInputError."""
    if GRANULARITY not in values:
        return
    granularity = values[GRANULARITY] = values[GRANULARITY].lower()
    if granularity not in ("row", LIST_ELEMENT):
        raise InvalidInputError(f"{GRANULARITY} is 'row' or '{LIST_ELEMENT}', not '{granularity}'.")
    if granularity == LIST_ELEMENT and not _is_list(field.type):
        raise InvalidInputError(
            f"{GRANULARITY} '{LIST_ELEMENT}' needs a list of texts: '{field.name}' is {field.type}."
        )


def _reason(error: ValueError) -> str:
    text = str(error).removeprefix("Failed to build tokenizer: ").removeprefix("Invalid user input: ")
    if "/" in text.split(", /")[0]:  # it names a path of this machine
        return "its model is not there, or cannot be read"
    return text.split(", /")[0]


def _is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name in ("arrow.json", "lance.json")


def _is_list(kind: pa.DataType) -> bool:
    return bool(of.is_list(kind) or of.is_large_list(kind))


def _has_order(kind: pa.DataType) -> bool:
    kind = storage_type(kind)
    checks = (of.is_integer, of.is_floating, of.is_boolean, of.is_temporal, of.is_binary, of.is_large_binary)
    wide = of.is_decimal128(kind) or of.is_decimal256(kind) or of.is_fixed_size_binary(kind)
    return bool(wide or is_text(kind) or any(check(kind) for check in checks))


def _is_flat_list(kind: pa.DataType) -> bool:
    return _is_list(kind) and not of.is_nested(storage_type(kind.value_type))


def _is_hashable(kind: pa.DataType) -> bool:
    kind = storage_type(kind)
    odd = (of.is_boolean, of.is_float16, of.is_duration, of.is_decimal, of.is_fixed_size_binary)
    return _has_order(kind) and not any(check(kind) for check in odd)


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    return bool(is_text(kind) or of.is_binary(kind) or of.is_large_binary(kind))


def _is_geometry(field: pa.Field) -> bool:
    """Return whether a field has one of GeoArrow's types, registered with pyarrow or by its metadata alone."""
    name = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(_EXTENSION, b"").decode()
    return bool(name.startswith("geoarrow."))


def _is_document(kind: pa.DataType) -> bool:
    return _is_json(kind) or is_text(kind.value_type if _is_list(kind) else kind)


_SUPPORTS: dict[IndexType, Callable[[pa.DataType], bool]] = {
    IndexType.BTREE: _has_order,
    IndexType.BITMAP: _has_order,
    IndexType.ZONEMAP: _has_order,
    IndexType.BLOOMFILTER: _is_hashable,
    IndexType.LABEL_LIST: _is_flat_list,
    IndexType.NGRAM: is_text,
    IndexType.FM: _is_bytes_or_text,
    IndexType.MINHASHLSH: is_text,
    IndexType.FTS: _is_document,
}
_VECTORS = "a column of fixed-size lists of floats or uint8"
_SCALARS = "a column of numbers, text, bytes, dates or times"
_NEEDS = {
    IndexType.BTREE: _SCALARS,
    IndexType.BITMAP: _SCALARS,
    IndexType.ZONEMAP: _SCALARS,
    IndexType.BLOOMFILTER: "a column of integers, floats, text, bytes, dates or times",
    IndexType.LABEL_LIST: "a column of lists whose items are no lists, structs or maps",
    IndexType.NGRAM: "a column of text",
    IndexType.FM: "a column of text or bytes",
    IndexType.RTREE: "a column of geometries (GeoArrow)",
    IndexType.MINHASHLSH: "a column of text",
    IndexType.FTS: "a column of text, of lists of text, or of JSON",
}

PURPOSES: dict[IndexType, str] = {
    IndexType.BTREE: "finds values and ranges",
    IndexType.LABEL_LIST: "finds rows by items of their lists",
    IndexType.IVF_PQ: "finds near vectors, compressed most",
    IndexType.IVF_FLAT: "finds near vectors, as they are",
    IndexType.FTS: "searches words",
    IndexType.BITMAP: "finds values, where there are few different ones",
    IndexType.RTREE: "finds geometries by their place",
    IndexType.NGRAM: "finds parts of texts",
    IndexType.FM: "finds any part of texts or bytes",
    IndexType.MINHASHLSH: "finds near-duplicate texts",
    IndexType.ZONEMAP: "skips parts by their smallest and largest value, and takes least space",
    IndexType.BLOOMFILTER: "skips parts that lack a value",
    IndexType.IVF_SQ: "finds near vectors, of one byte a number",
    IndexType.IVF_RQ: "finds near vectors, of few bits a number",
    IndexType.IVF_HNSW_FLAT: "finds near vectors by a graph",
    IndexType.IVF_HNSW_SQ: "finds near vectors by a graph, of one byte a number",
    IndexType.IVF_HNSW_PQ: "finds near vectors by a graph, compressed most",
}
"""What an index of each type does; of those that fit a column, the first is the one to begin with."""
