"""The API has types: mypy takes a user's code and the examples of the pipeline's pages, and finds a user's mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.test_page import DOCS, PIPELINE_PAGES

PAGES = "".join((DOCS / page).read_text() for page in PIPELINE_PAGES)

CODE = """
import pandas as pd
import pyarrow as pa
import tiltyard
from tiltyard import Lake, Run, Table, View


def letters(title: str) -> int:
    return len(title)


def load(lake: Lake, frame: pd.DataFrame, rows: pa.Table) -> int:
    films: Table = lake.table("films")
    run: Run = films.ingest("films.parquet", mode="create", checks=["unique(id)"], rejects="bad/")
    films.upsert(frame, on="id")
    films.write(rows, mode="append")
    films.write([{"id": 1}])
    films.write({"id": number} for number in range(3))
    films.delete(where="id = 1")
    films.upsert(rows, key="id").wait()
    films.at(1).search([0.5], k=3).num_rows
    films.add_column("letters", letters)
    films.add_column("letters", lambda batch: batch.column(0), inputs=["title"], type="int32")
    films.create_index("vector", "IVF_PQ", metric="cosine", num_partitions=4)
    view: View = lake.create_view("late", "SELECT id FROM films")
    view.refresh(wait=False).cancel()
    with lake.publish() as change:
        change.table("films").delete("id > 5")
    share: float | None = run.progress
    return run.wait(timeout=5.0).rows if share is None else films.count("id < 10")


print(load(tiltyard.connect("data", storage={"region": "eu"}), pd.DataFrame(), pa.table({})))
"""
WRONG = {
    "films.ingest('a', mode='crate')": "arg-type",
    "films.upsert('a')": "call-overload",
    "films.delete()": "call-overload",
    "films.count(5)": "arg-type",
    "films.to_spark(colums=['id'])": "call-arg",
    "tiltyard.connect('a', key='b')": "call-arg",
    "films.optimize().version + 1": "operator",
}


@pytest.mark.extended  # mypy takes seconds to read the package
def test_mypy_takes_code_of_users_and_finds_its_mistakes(tmp_path: Path) -> None:
    examples = "\n".join(re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL))
    head = "import tiltyard\n\nfilms = tiltyard.connect('data').table('films')\n"
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "examples.py").write_text(examples)
    (tmp_path / "wrong.py").write_text(head + "\n".join(WRONG))
    options = ["--ignore-missing-imports", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "code.py", "examples.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = dict(re.findall(r"^wrong\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE))
    assert found == {str(line): code for line, code in enumerate(WRONG.values(), 4)}, done.stdout + done.stderr
    others = [line for line in done.stdout.splitlines() if ": error: " in line and not line.startswith("wrong.py")]
    assert others == []
