"""The key that Lance's schema declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pytest

from tiltyard.model.columns.primary_keys import UNENFORCED, UNENFORCED_POSITION, unenforced_key

if TYPE_CHECKING:
    from pathlib import Path

POSITION = UNENFORCED_POSITION
FLAGS = (b"true", b"True", b"1", b"yes", b"YES", b"on", b"y", b"t", b"2", b"false", b"")
POSITIONS = (b"0", b"1", b"01", b"+1", b"4294967295", b"4294967296", b"-1", b"x", b" 1", b"")


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ([{}, {}, {}], []),
        ([{UNENFORCED: b"true"}, {}, {UNENFORCED: b"True"}], ["a", "c"]),
        ([{POSITION: b"2"}, {}, {POSITION: b"1"}], ["c", "a"]),
        ([{UNENFORCED: b"true"}, {POSITION: b"1"}, {}], ["b", "a"]),
        ([{POSITION: b"0"}, {POSITION: b"3"}, {UNENFORCED: b"false"}], ["b", "a"]),
        ([{POSITION: b"-1"}, {POSITION: b"x"}, {UNENFORCED: b"false"}], []),
        ([{UNENFORCED: b"true", POSITION: b"9" * 10_000}, {}, {}], ["a"]),
    ],
)
def test_unenforced_key_is_what_is_marked_in_order_of_position(
    metadata: list[dict[bytes, bytes]], key: list[str]
) -> None:
    fields = [pa.field(name, pa.int64(), metadata=each) for name, each in zip("abc", metadata, strict=True)]
    assert unenforced_key(pa.schema(fields)) == key


def test_unenforced_key_has_the_columns_that_lance_takes_for_its_key(tmp_path: Path) -> None:
    declared = [{UNENFORCED: flag} for flag in FLAGS] + [{POSITION: position} for position in POSITIONS]
    fields = [pa.field(f"c{at}", pa.int64(), False, metadata=each) for at, each in enumerate(declared)]
    dataset = lance.write_dataset(pa.schema(fields).empty_table(), tmp_path)
    of_lance = {field.name() for field in dataset.lance_schema.fields() if field.is_unenforced_primary_key()}
    assert set(unenforced_key(dataset.schema)) == of_lance
