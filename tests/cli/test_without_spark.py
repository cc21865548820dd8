"""The commands where the packages of `tiltyard[spark]` are not installed, as after `pip install .`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tiltyard.namespace import Namespace

_WITHOUT_EXTRA = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "pandas", "yaml", "grpc"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
_HELP = (
    _WITHOUT_EXTRA
    + """
from click.testing import CliRunner
from tiltyard.cli import main

for words in ("job", "job upsert", "job stream", "job refresh", "pipeline run", "view", "view create"):
    shown = CliRunner().invoke(main, [*words.split(), "--help"], catch_exceptions=False)
    assert shown.exit_code == 0, (words, shown.output)
"""
)
_COMMAND = f"{_WITHOUT_EXTRA}\nfrom tiltyard.__main__ import main\nmain()"
_UPSERT = (
    _WITHOUT_EXTRA
    + """
import sys
import pyarrow as pa
import tiltyard

films = tiltyard.connect(sys.argv[1]).table("films")
films.ingest(pa.table({"id": [1, 2]}))
films.upsert(pa.table({"id": [2, 3]}), on="id")
print(films.count())
"""
)


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_help_without_spark_is_shown() -> None:
    shown = _run(_HELP)
    assert shown.returncode == 0, shown.stderr


def test_create_view_without_spark_says_what_to_install(tmp_path: Path) -> None:
    Namespace(str(tmp_path)).close()  # a catalog
    refused = _run(_COMMAND, "view", "create", "v", "--sql", "SELECT 1", "--uri", str(tmp_path))
    assert refused.returncode == 1
    assert "pip install 'tiltyard[spark]'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_upsert_of_few_rows_without_spark_succeeds(tmp_path: Path) -> None:
    counted = _run(_UPSERT, str(tmp_path))
    assert (counted.stdout, counted.returncode) == ("3\n", 0), counted.stderr
