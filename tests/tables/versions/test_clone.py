"""CloneTable beside other requests on its source."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.tables.served import Server, ask

from tiltyard.model.spec import models
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.versions.clone import clone_table

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_shallow", [True, False])
def test_table_is_read_while_it_is_cloned(tmp_path: Path, is_shallow: bool) -> None:
    server = Server(tmp_path)
    source = server.create("t", pa.table({"a": range(2000)}), max_rows_per_file=20)
    is_cloned = threading.Event()

    def read() -> None:
        while not is_cloned.is_set():
            assert open_for_reading(server.ctx, ["t"]).dataset.version == 1

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(5):
                request = {"id": f"copy{number}", "source_location": source.uri, "is_shallow": is_shallow}
                clone_table(server.ctx, ask(models.CloneTableRequest, **request))
        finally:
            is_cloned.set()
        for reader in readers:
            reader.result()
    assert server.open("copy4").count_rows() == 2000
