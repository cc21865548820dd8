"""Folders of processes: kept while their owners live, and removed by the next one where these were killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from tiltyard.runtime.owned_folders import OwnedFolder

if TYPE_CHECKING:
    from pathlib import Path

OWNER = """
import sys
from tiltyard.runtime.owned_folders import OwnedFolder
folder = OwnedFolder("spill-", sys.argv[1])
(folder.path / "rows").write_text("many")
print(folder.path.name, flush=True)
sys.stdin.read()
"""


def test_folder_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    own = OwnedFolder("spill-", str(tmp_path))
    (tmp_path / "spill-of-others").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        name = owner.stdout.readline().strip()
        other = OwnedFolder("spill-", str(tmp_path))
        assert (tmp_path / name / "rows").exists(), "its owner lives"
        owner.kill()
        owner.wait()
    OwnedFolder("else-", str(tmp_path)).remove()
    assert (tmp_path / name).exists()
    other.remove()
    other.remove()
    latest = OwnedFolder("spill-", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {own.path.name, latest.path.name, "spill-of-others"}


def test_folder_that_a_cleaner_has_removed_is_made_again(tmp_path: Path) -> None:
    own = OwnedFolder("spill-", str(tmp_path))
    before = own.path
    assert own.path == before
    shutil.rmtree(before)
    assert own.path.is_dir(), "the folder was removed"
    (own.path / "owner.lock").unlink()
    (own.path / "rows").write_text("many")
    again = own.path
    OwnedFolder("spill-", str(tmp_path)).remove()
    assert again.is_dir(), "it is owned again"
    own.remove()
    assert list(tmp_path.iterdir()) == []
