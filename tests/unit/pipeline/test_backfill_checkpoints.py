"""A fragment whose backfill is cut off: the next attempt computes what is left of it, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tiltyard.column_refresh.fragment_files import FilledFragment, FragmentPlan, NewFile
from tiltyard.column_refresh.freshness import FragmentState
from tiltyard.pipeline.backfill import checkpoints
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledColumn, FillFragment
from tiltyard.pipeline.functions.call_policy import CallPolicy
from tiltyard.pipeline.functions.user_functions import UserFunction
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.storage.files import FileEntry
from tiltyard.tables.upkeep.references import FileKind, classify

ROWS, BATCH = 1000, 100
BAD = 150
"""The row that the function fails on."""


class CutOffError(BaseException):
    """What ends an attempt; nothing of ours handles it, as nothing handles a kill."""


computed: list[int] = []
"""What the function has halved."""
limit = ROWS


def halves(rows: pa.RecordBatch) -> pa.Array:
    """Halve x, until so many rows were halved."""
    numbers = rows.column("x").to_pylist()
    if len(computed) >= limit:
        raise CutOffError
    if BAD in numbers:
        raise ValueError("no half")
    computed.extend(numbers)
    return pc.divide(rows.column("x"), 2)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lance.LanceDataset:
    """A table of one fragment with an empty column `y`."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0)
    computed.clear()
    dataset = lance.write_dataset(pa.table({"x": range(ROWS)}), str(tmp_path / "t.lance"))
    dataset.add_columns(pa.field("y", pa.int64()))
    return dataset


def fill(dataset: lance.LanceDataset, attempt: int, rows_left: int = ROWS, run: str = "run") -> FilledFragment:
    """Attempt to fill the fragment, as a plan of the latest version has it."""
    global limit  # noqa: PLW0603  # of the function, which knows nothing of the test
    limit = len(computed) + rows_left
    plan = FragmentPlan(
        int(dataset.version), 0, (NewFile("y", FragmentState.ALL, f"{attempt:032}-udf-full-c0de.lance"),), None
    )
    function = ColumnFunction(
        (FilledColumn(pa.field("y", pa.int64())),),
        ("x",),
        UserFunction(__name__, "halves"),
        policy=CallPolicy(on_error="null"),
    )
    location = TableLocation(dataset.uri, {}, CatalogConnection("dir", ()), ("t",))
    return FillFragment(location, None, plan, function, run, BATCH)()


def saved(dataset: lance.LanceDataset) -> list[str]:
    """Return the names of the checkpoints."""
    return sorted(path.name for path in Path(dataset.uri, "data").glob("*.arrow"))


def numbers(filled: FilledFragment, dataset: lance.LanceDataset) -> list[int | None]:
    """Return the values of a file that was filled."""
    reader = lance.file.LanceFileReader(f"{dataset.uri}/data/{filled.files[0].path}")
    values: list[int | None] = reader.read_all().to_table()["y"].to_pylist()
    return values


def test_fragment_that_is_cut_off_goes_on_where_it_ended(dataset: lance.LanceDataset) -> None:
    with pytest.raises(CutOffError):
        fill(dataset, 1, rows_left=550)
    assert len(saved(dataset)) > 2
    done = set(computed) | {BAD}
    assert all(
        kind is not None and kind.kind is FileKind.DATA  # which no version needs: garbage, should nobody go on
        for kind in (classify(FileEntry(f"data/{name}", 1, 1), ()) for name in saved(dataset))
    )
    computed.clear()
    dataset.delete("x < 0")  # a commit that leaves the fragment as it is
    filled = fill(dataset, 2)
    again = set(computed)
    last_batch = max(done) // BATCH  # an attempt ends within a batch, whose values are not saved
    assert min(again) >= last_batch * BATCH and again | done == set(range(ROWS))
    assert numbers(filled, dataset) == [None if number == BAD else number // 2 for number in range(ROWS)]
    assert (filled.rows, filled.failed, [error.row for error in filled.errors]) == (ROWS - 1, 1, [BAD])
    assert saved(dataset) == []


def test_checkpoints_of_other_rows_another_run_or_damage_are_not_used(dataset: lance.LanceDataset) -> None:
    with pytest.raises(CutOffError):
        fill(dataset, 1, rows_left=550)
    kept = saved(dataset)
    computed.clear()
    assert fill(dataset, 2, run="another").rows == len(computed) == ROWS - 1
    assert saved(dataset) == kept
    Path(dataset.uri, "data", kept[0]).write_bytes(b"cut")  # the first one, at which reading begins
    computed.clear()
    assert fill(dataset, 3).rows == len(computed) == ROWS - 1
    with pytest.raises(CutOffError):
        fill(dataset, 4, rows_left=550)
    dataset.delete("x = 3")
    computed.clear()
    filled = fill(dataset, 5)
    assert filled.rows == len(computed) == ROWS - 2
