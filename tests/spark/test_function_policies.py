"""Rows that functions fail on: they fail the job, are null, or are parked, looked at and computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

import tiltyard
from tests.services.server import ServerProcess
from tiltyard.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODE = """
import pathlib
import pyarrow.compute as pc

HERE = pathlib.Path({folder!r})

def length(rows):
    titles = rows["title"]
    with (HERE / "calls").open("a") as file:
        file.write(f"{{rows.num_rows}}\\n")
    if not (HERE / "fixed").exists() and set(titles.to_pylist()) & {{"film 7", "film 9"}}:
        raise ValueError("no such film")
    return pc.utf8_length(titles)

def with_length(rows):
    return rows.append_column("length", length(rows))
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    """Return a file of functions that fail on two rows until the file `fixed` is beside it."""
    file = tmp_path / "own.py"
    file.write_text(CODE.format(folder=str(tmp_path)))
    return str(file)


@pytest.fixture
def films(spark: SparkSession, shared_server: ServerProcess, fresh: Callable[[str], str]) -> tiltyard.Table:
    """Return a table of 20 films."""
    films = tiltyard.connect(shared_server.url).table(fresh("parked"))
    films.ingest(rows(range(20)))
    return films


def rows(ids: range) -> pa.Table:
    return pa.table({"id": list(ids), "title": [f"film {number}" for number in ids]})


def test_parked_rows_are_looked_at_and_computed_alone(
    films: tiltyard.Table, shared_server: ServerProcess, code: str, tmp_path: Path
) -> None:
    with pytest.raises(TableColumnNotFoundError, match="no column 'letters'"):
        films.errors("letters")
    run = films.backfill("letters", f"{code}:length", inputs="title", type="int32", on_error="park", batch_rows=8)
    assert (run.rows, run.figures["rows_failed"]) == (18, "2")
    errors = films.errors("letters")
    assert errors["id"].to_pylist() == [7, 9] and set(errors["job"].to_pylist()) == {run.id}
    assert set(errors["error_type"].to_pylist()) == {"ValueError"}
    assert set(errors["error_message"].to_pylist()) == {"no such film"}
    command = ["job", "errors", "--uri", shared_server.url, films.name, "letters"]
    shown = CliRunner().invoke(main, command)
    assert shown.exit_code == 0 and "_rowid 7  ValueError: no such film" in shown.output, shown.output
    assert "2 parked" in shown.output

    films.write(rows(range(20, 22)), null="letters")
    (tmp_path / "fixed").touch()
    (tmp_path / "calls").unlink()
    run = films.backfill("letters", f"{code}:length", inputs="title", parked=True)
    assert run.rows == 2 and (tmp_path / "calls").read_text() == "2\n"
    assert films.errors("letters").num_rows == 0
    assert films.to_arrow("id", "letters IS NULL")["id"].to_pylist() == [20, 21]
    with pytest.raises(InvalidInputError, match="leave filter out"):
        films.backfill("letters", f"{code}:length", inputs="title", parked=True, filter="id > 3")


def test_function_of_an_ingest_may_leave_rows_without_its_values(films: tiltyard.Table, code: str) -> None:
    udf = f"{code}:with_length"
    with pytest.raises(InvalidInputError, match="on_error is park: name a folder"):
        films.ingest(rows(range(10)), mode="overwrite", udf=udf, on_error="park")
    with pytest.raises(InvalidInputError, match="batch_mb is an option of functions"):
        films.ingest(rows(range(10)), mode="overwrite", batch_mb=1)
    with pytest.raises(TypeError, match="no argument 'on_eror'"):
        films.ingest(rows(range(10)), mode="overwrite", udf=udf, on_eror="null")  # type: ignore[call-arg]
    films.ingest(rows(range(10)).slice(8), mode="overwrite", udf=udf, on_error="null", batch_mb=1e-5)
    assert films.to_arrow().to_pylist() == [
        {"id": 8, "title": "film 8", "length": 6},
        {"id": 9, "title": "film 9", "length": None},
    ]


@pytest.mark.extended
def test_rows_that_a_backfill_may_not_compute_in_time_are_null(
    films: tiltyard.Table, code: str, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n\ndef slow(rows):\n    time.sleep(60 if 'film 3' in rows['title'].to_pylist() else 0)\n"
        "    return rows['title'].is_null().cast('int32')\n"
    )
    slow = f"{tmp_path / 'slow.py'}:slow"
    with pytest.raises(InvalidInputError, match=r"longer than 2 s.* a row with _rowid = 0 to 15"):
        films.backfill("slow", slow, inputs="title", type="int32", batch_seconds=2)
    run = films.backfill("slow", slow, inputs="title", type="int32", batch_rows=2, batch_seconds=2, on_error="null")
    assert (run.rows, run.figures["rows_failed"]) == (19, "1")
    assert films.errors("slow").num_rows == 0, "rows that are null are not parked"
    with pytest.raises(InvalidInputError, match="which reserves nothing for tasks"):
        films.backfill("gpu", f"{code}:length", inputs="title", type="int32", resources={"gpu": "1"})
