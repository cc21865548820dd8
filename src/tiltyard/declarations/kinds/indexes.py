"""Indexes of tables, with the options that CreateTableIndex has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.model.columns.index_parameters import index_options
from tiltyard.model.columns.index_types import check_parameter_names, parse_index_type
from tiltyard.model.text.yaml_text import ContentError, convert_content

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An index of a column; options that are left out are as the server chooses them."""

    column: str
    type: str
    options: dict[str, Any] = {}


def parse_indexes(content: Any, path: Sequence[str | int]) -> dict[str, Index]:
    """Return indexes by name. Raises ContentError."""
    indexes = convert_content(content, dict[str, Any], path)
    return {name: _parse_index(value, (*path, name)) for name, value in indexes.items()}


def _parse_index(content: Any, path: Sequence[str | int]) -> Index:
    index: Index = convert_content(content, Index, path)
    try:
        kind = parse_index_type(index.type)
        check_parameter_names(index.type, index.options)
    except InvalidInputError as error:
        raise ContentError(path, str(error)) from error
    return msgspec.structs.replace(index, type=kind.value)


def read_indexes(calls: Caller, table: Sequence[str]) -> dict[str, Index]:
    """Return the indexes of a table by name, those that are being built included. Raises as ListTableIndices does."""
    found = {}
    for entry in calls.entries("ListTableIndices", "indexes", id=list(table)):
        details = msgspec.json.decode(entry.get("index_details") or "{}", type=dict[str, Any])
        found[entry["index_name"]] = Index(entry["columns"][0], entry["index_type"], index_options(details))
    return dict(sorted(found.items()))


def create_index(calls: Caller, table: Sequence[str], name: str, index: Index, *, replaces: bool = False) -> None:
    """Queue the build of an index, which the server's workers do. Raises as CreateTableIndex does."""
    calls.call(
        "CreateTableIndex",
        id=list(table),
        name=name,
        column=index.column,
        index_type=index.type,
        replace=replaces or None,
        **index.options,
    )
