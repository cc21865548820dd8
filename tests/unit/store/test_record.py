"""Records are read of rows by the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tiltyard.store.repository import Path, Record


class Colour(StrEnum):
    """Values of a column."""

    RED = "red"


class Example(Record, frozen=True):
    """A field of each form that columns have."""

    id: int
    is_new: bool
    is_seen: bool | None
    colour: Colour
    properties: Mapping[str, str]
    document: dict[str, Any] | None
    path: Path
    text: str
    mount_id: int | None = None


class Renamed(Record, frozen=True):
    """A record whose columns have other names."""

    id: int
    requested_by: str

    COLUMNS = "id, asked_by"


def test_of_each_type_decodes_its_column() -> None:
    row = (1, 0, 1, "red", "{}", '{"a":[1]}', '["a","b"]', "{}", 7)
    expected = Example(1, False, True, Colour.RED, {}, {"a": [1]}, ("a", "b"), "{}", 7)
    assert repr(Example.of(row)) == repr(expected)  # 0 and False are equal


def test_row_is_what_of_reads() -> None:
    record = Example(1, False, True, Colour.RED, {"k": "v"}, {"a": [1]}, ("a", "b"), "{}", 7)
    assert record.row == (1, False, True, "red", '{"k":"v"}', '{"a":[1]}', '["a","b"]', "{}", 7)
    assert Example.of(record.row) == record


def test_of_null_and_missing_columns_have_none_and_defaults() -> None:
    record = Example.of((1, 1, None, "red", "{}", None, "[]", ""))
    assert (record.is_seen, record.document, record.path, record.mount_id) == (None, None, (), None)


def test_columns_are_those_of_the_fields_unless_named() -> None:
    assert Example.COLUMNS == "id, is_new, is_seen, colour, properties, document, path, text, mount_id"
    assert Renamed.COLUMNS == "id, asked_by"
    assert Renamed.columns_of("jobs") == "jobs.id, jobs.asked_by"
    assert Renamed.of((1, "ada")) == Renamed(1, "ada")
