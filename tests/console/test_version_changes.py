"""What each version of a table did, in the console's timeline and by `tiltyard versions`, for every kind of commit.

No word of it is a guess: rows are told apart where Lance can (stable row ids), and counted as rewritten where not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from itertools import pairwise
from typing import Any

import httpx
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.cli import main

Step = Callable[[lance.LanceDataset], Any]
COUNTS = ("inserted_rows", "updated_rows", "deleted_rows", "written_rows", "removed_rows")


def rows(first: int, end: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(first, end), pa.int64()), "v": [f"x{number}" for number in range(first, end)]}
    )


def merge(dataset: lance.LanceDataset) -> None:
    """Update 5 rows, insert 10 and delete 3."""
    builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.when_not_matched_by_source_delete("id < 3").execute(rows(45, 60))


STEPS: tuple[tuple[Step, str, str, str], ...] = (
    (lambda table: table.insert(rows(40, 50)), "append", "10 inserted", "10 inserted"),
    (lambda table: table.update({"v": "'u'"}, where="id < 29"), "update", "29 updated", "29 rows rewritten"),
    (lambda table: table.update({"v": "'w'"}), "update", "50 updated", "50 rows rewritten"),
    (merge, "merge", "10 inserted, 5 updated, 3 deleted", "15 rows written, 8 removed"),
    (
        lambda table: table.merge_insert("id").when_not_matched_insert_all().execute(rows(60, 63)),
        *("merge", "3 inserted", "3 inserted"),
    ),
    (lambda table: table.delete("id = 20"), "delete", "1 deleted", "1 deleted"),
    (lambda table: table.optimize.compact_files(), "compaction", "no row changed", "no row changed"),
    (lambda table: table.create_scalar_index("id", "BTREE"), "index id_idx", "no row changed", "no row changed"),
    (lambda table: table.add_columns({"w": "id * 2"}), "add columns w", "no row changed", "no row changed"),
    (
        lambda table: table.alter_columns({"path": "w", "name": "w2"}),
        *("alter columns w to w2", "no row changed", "no row changed"),
    ),
    (
        lambda table: table.alter_columns({"path": "w2", "data_type": pa.int32()}),
        *("alter columns w2 is int32", "no row changed", "no row changed"),
    ),
    (lambda table: table.drop_columns(["w2"]), "drop columns w2", "no row changed", "no row changed"),
    (lambda table: table.drop_index("id_idx"), "index dropped id_idx", "no row changed", "no row changed"),
    (lambda table: table.update_config({"a": "b"}), "configuration", "no row changed", "no row changed"),
    (
        lambda table: table.checkout_version(2).restore(),
        *("restore version 2", "rows as they were then", "rows as they were then"),
    ),
    (
        lambda table: lance.write_dataset(rows(0, 7), table.uri, mode="overwrite"),
        *("overwrite", "7 inserted, 50 deleted", "7 inserted, 50 deleted"),
    ),
    (lambda table: table.tags.create("seven", table.version), "", "", ""),
    (lambda table: table.delete("true"), "delete", "7 deleted", "7 deleted"),
)
"""Each step, its operation, and what is said of it with stable row ids and without; a tag makes no version."""


@pytest.mark.parametrize("is_stable", [True, False], ids=["stable row ids", "no stable row ids"])
def test_every_version_says_its_operation_and_its_rows(
    is_stable: bool, server: ServerProcess, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"steps_{is_stable}".lower()
    location = f"{server.root}/{name}.lance"
    lance.write_dataset(rows(0, 40), location, max_rows_per_file=20, enable_stable_row_ids=is_stable)
    expected = {1: ("create", "40 inserted")}
    for step, operation, stable, other in STEPS:
        before = lance.dataset(location).version
        step(lance.dataset(location))
        if (newest := lance.dataset(location).version) > before:
            expected[newest] = operation, stable if is_stable else other
    with Wire(server.url) as wire:
        wire.good(wire.table([name], "register", {"location": f"{name}.lance"}))
    shown = timeline(http, name)
    assert {number: shown[number] for number in expected} == expected
    assert {text for number, text in shown.items() if number not in expected} <= {("internal", "no row changed")}
    check_command(server, name, shown, monkeypatch)


def timeline(http: httpx.Client, name: str) -> dict[int, tuple[str, str]]:
    """Return what the console says of each version: its operation, and its rows."""
    page = http.get(f"/versions/{name}").text
    inner = page.partition('<ol class="timeline">')[2].partition("</ol>")[0]
    texts = [
        " ".join(unescape(re.sub(r"<[^>]+>", " ", each)).split()).replace(" ,", ",") for each in inner.split("<li>")[1:]
    ]
    found = [re.search(r"^Version (\d+) .* UTC (.*?) · (.*?) · [\d,]+ rows?", text) for text in texts]
    assert all(found), texts
    return {int(match[1]): (match[2], match[3]) for match in found if match}


def check_command(
    server: ServerProcess, name: str, shown: dict[int, tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `tiltyard versions` says the same; what it counts explains each version's number of rows."""
    monkeypatch.setenv("TILTYARD_SERVER", server.url)
    done = CliRunner().invoke(main, ["versions", name, "-n", "100", "--format", "jsonl"], catch_exceptions=False)
    records = [json.loads(line) for line in done.stdout.splitlines()][::-1]
    assert {record["version"]: record["operation"] for record in records} == {n: text for n, (text, _) in shown.items()}
    for before, record in pairwise(records):
        counts = {column: int(record.get(column) or 0) for column in COUNTS}
        gained = counts["inserted_rows"] + counts["written_rows"] - counts["deleted_rows"] - counts["removed_rows"]
        if record["operation"] != "restore version 2":
            assert int(record["total_rows"]) - int(before["total_rows"]) == gained, record
    table = CliRunner().invoke(main, ["versions", name, "-n", "100"], catch_exceptions=False).stdout
    assert "index id_idx" in table and "inserted_rows" in table
