"""What is acknowledged passes through one module that makes it durable: these tests find writers beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tiltyard

SOURCE = Path(tiltyard.__file__).parent
DOOR = "runtime/durability.py"

SYNCS = frozenset({"fsync", "fdatasync", "syncfs", "sync_file_range"})

WRITERS = re.compile(
    r"(?:^|\.)(?:write_fragments|create_branch|deep_clone|shallow_clone)$|LanceDataset\.commit$|tags\.(?:create|update|delete)$"
    r"|branches\.delete$|write_if_not_exists$|files(?:\(.*\))?\.copy$|\.restore$"
)
"""Calls that write files of tables, by Lance or by ourselves."""
MADE_DURABLE_BY = {
    "storage/writing.py": (
        "make_durable",
        "commits: the commit route makes the rest durable, or `finish_direct_commit`",
    ),
    "backup/target.py": ("make_durable", ""),
    "storage/manifests/manifest_store.py": ("_make_durable", "and in the background, by `settle_manifests`"),
    "storage/manifests/next_manifest.py": ("TemporaryDirectory", "files that are read back at once"),
    "storage/objects.py": ("obstore", "objects are durable as soon as they are stored"),
    "catalog/functions/functions.py": ("make_durable", ""),
    "tables/views/select_views.py": ("write_rows", "that makes them durable"),
    "tables/rows/create.py": ("make_durable", ""),
    "tables/contracts/incoming_rows.py": ("make_durable", ""),
    "tables/versions/tags.py": ("changing_reference", ""),
    "tables/versions/snapshots.py": ("changing_reference", ""),
    "tables/versions/branches.py": ("changing_reference", ""),
    "tables/versions/clone.py": ("make_durable", ""),
    "tables/versions/cherry_pick.py": ("make_durable", ""),
    "tables/versions/versions.py": ("commit_with_retry", "its commit takes the commit route"),
    "tables/erasure/rows.py": ("finishing_direct_commits", "or the commit takes the commit route"),
    "tables/erasure/parked_rows.py": ("make_durable", ""),
    "tables/erasure/old_versions.py": ("changing_reference", ""),
    "tables/upkeep/repair.py": ("commit_route", "its commit takes the commit route"),
}
"""Modules of the server that write files of tables, and what in them makes these durable."""
CLIENTS = ("pipeline/", "publishing/", "lake/", "namespace.py", "cli/")
"""They commit through the server, which checks what they have written and makes it durable."""

TASK_WRITERS = re.compile(
    r"(?:^|\.)(?:write_fragments|LanceFileWriter|write_column_files|create_index_uncommitted|merge_existing_index_segments)$"
    r"|self\.task\.execute$"
)
"""Calls by which tasks of the pipeline write files that are committed later, by another process perhaps."""
RENAMES = re.compile(r"(?:^|\.)(?:temporary\.(?:replace|rename)|(?:part|new)\.rename)$|^os\.replace$")
MAY_RENAME = {
    DOOR: "it is the one",
    "api/request_log.py": "figures that begin anew when they are lost",
    "pipeline/functions/environments.py": "environments are checked before they are used",
    "storage/disk_cache/table_copy.py": "a cache, whose files have checksums",
}
"""Modules that give temporary files their names without making these durable, and why."""


@cache
def calls(module: Path) -> tuple[str, ...]:
    """Return what a module calls, as its source has it."""
    tree = ast.parse(module.read_text())
    return tuple(ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), path


def test_only_one_module_syncs_files() -> None:
    syncing = {name for name, path in modules() if any(call.rpartition(".")[2] in SYNCS for call in calls(path))}
    assert syncing == {DOOR}, f"call {DOOR} instead"


def test_what_writes_files_of_tables_makes_them_durable() -> None:
    writing = {
        name: path
        for name, path in modules()
        if not name.startswith(CLIENTS) and any(WRITERS.search(call) for call in calls(path))
    }
    assert set(writing) - set(MADE_DURABLE_BY) == set(), "make what it writes durable, and say so here"
    missing = {name for name, path in writing.items() if MADE_DURABLE_BY[name][0] not in path.read_text()}
    assert missing == set()


def test_every_version_is_made_durable_before_it_is_recorded() -> None:
    """Whatever records a version of a client, or of Lance, calls `make_durable` first."""
    recording = {
        name
        for name, path in modules()
        if name.startswith("tables/commits/") and any(re.search(r"\.record_versions?$", call) for call in calls(path))
    }
    assert recording == {"tables/commits/recording.py"}
    source = (SOURCE / recording.pop()).read_text()
    [record] = re.findall(r"^def record_versions\(.*?(?=^def )", source, re.MULTILINE | re.DOTALL)
    assert 0 < record.index("_make_durable(") < record.index("write()")


def test_what_tasks_write_is_durable_when_they_return_it() -> None:
    """A checkpoint names it: a job that goes on after a loss of power commits it as it is."""
    writing = {
        name: path
        for name, path in modules()
        if name.startswith("pipeline/") and any(TASK_WRITERS.search(call) for call in calls(path))
    }
    assert len(writing) >= 4
    assert {name for name, path in writing.items() if "make_durable" not in path.read_text()} == set()


def test_files_that_take_the_place_of_others_do_so_durably() -> None:
    renaming = {name for name, path in modules() if any(RENAMES.search(call) for call in calls(path))}
    assert renaming == set(MAY_RENAME), f"call `atomic_file` or `replace_file` of {DOOR} instead"
