"""The tasks of an upsert, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.table_location import EXPIRES_OPTION, TableLocation
from tiltyard.pipeline.upsert.tasks import SourceKeys
from tiltyard.pipeline.writing import fragments
from tiltyard.pipeline.writing.fragments import FragmentTarget, parse_fragments, write_batches


def test_keys_are_read_with_credentials_that_are_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"v": ["x"] * 10, "half": [n % 2 for n in range(10)], "id": range(10)})
    plain = TableLocation(str(tmp_path / "t.lance"), {}, connection(str(tmp_path)), ("t",))
    written = parse_fragments(write_batches(FragmentTarget(plain, rows.schema, fresh=True), rows.to_batches()))
    renewed: list[Any] = []

    def reading(path: str, options: Any, columns: Any, **how: Any) -> LanceFileReader:
        """Lance's own, which on a local disk has nothing to renew."""
        renewed.append(how.get("table_id"))
        return LanceFileReader(path, None, columns)

    monkeypatch.setattr(fragments, "LanceFileReader", reading)
    location = TableLocation(plain.uri, {EXPIRES_OPTION: "1"}, plain.connection, plain.table)
    [keys] = SourceKeys.of(location, ["id", "half"], written).chunks()
    assert keys.to_pydict() == {"id": list(range(10)), "half": [0, 1] * 5}
    assert renewed == [["t"]]
