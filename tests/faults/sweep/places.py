"""The writes of the source, as its text has them, and those that sweeps have reached."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import tiltyard

SOURCE = Path(tiltyard.__file__).parent
REACHED = Path(__file__).parent / "reached.txt"
"""Functions in which a kill of a sweep has struck, a line each: `--record` adds to it."""
UNREACHED = Path(__file__).parent / "unreached.txt"
"""Those that no sweep reaches, for the reasons in NOT_SWEPT: add new ones by hand."""

_WRITES = re.compile(
    r"(?:^|\.)(?:transact|write_statement|make_durable|atomic_file|replace_file|write_new|temporary_beside|make_folder"
    r"|write_if_not_exists|rename_if_not_exists|changing_reference|delete_files|delete_folder|copyfile|copytree|rmtree"
    r"|write_fragments|create_branch|deep_clone|shallow_clone|write_bytes|write_text|unlink|rmdir|mkdir|touch|hardlink_to)$"
    r"|^database\.write$|_database\.write$|LanceDataset\.commit$|tags\.(?:create|update|delete)$|branches\.delete$"
    r"|files(?:\(.*\))?\.(?:copy|delete)$|target\.(?:write|delete)$|^os\.(?:link|rename|replace|unlink)$"
)
"""Calls that write to the database, a disk or an object store, by ourselves or by Lance."""

_ONE_TRANSACTION = "one transaction that nothing follows: the database's own atomicity, `tests/store` shows it"
_SERVED = "killed in a running server at each named point: `tests/faults`, `tests/conformance/test_repeats.py`"
_PROCESS = "files of one process, or of one machine's caches, which begin anew"
NOT_SWEPT = {
    r"store\.(access|audit|events|processes|functions|namespaces|mounts\.mounts|tables\.(ages|contracts|erasures|tables|lineage|views))[.:].*"
    r"|store\.(approvals|protections|sqlite|schema|dump|jobs)[.:].*": _ONE_TRANSACTION,
    r"identity\.keys:.*|context:.*|catalog\.schedules\..*": _ONE_TRANSACTION,
    r"catalog\.(namespaces|tables|undrop|garbage|jobs\.submission|functions\.functions|mounts\.tables)[.:].*": _SERVED,
    r"store\.(idempotency|tables\.(queued_appends|folder_.*|trash|uploads|versions|upkeep|snapshots))[.:].*": _SERVED,
    r"tables\.(commits|rows|contracts)\..*|storage\.(writing|manifests\..*|storage|files|reference_files):.*": _SERVED,
    r"tables\.versions\.(tags|branches|cherry_pick|clone|reference_changes):.*": _SERVED,
    r"tables\.erasure\..*": "the job is killed at each of its steps: `tests/tables/erasure`",
    r"tables\.upkeep\.(garbage|repair|automatic_refreshes|upkeep_job):.*": "model `collection`, `tests/tables/upkeep`",
    r"(api\.request_log|server\..*|sql\..*|worker\.driver.*|runtime\..*|storage\.(disk_cache\..*|locks)):.*": _PROCESS,
    r"(cli|console|lake)\..*": "files of a person who runs a command, or of an upload, which is sent again",
    r"catalog\.mounts\.table_moves:_add_staged|store\.mounts\..*": "copies and dropped mirrors: `tests/mounts/served`",
    r"backup\.create:_copy_source": "sources of functions, copied as files are: `tests/backup`",
    r"storage\.objects:.*|backup\.target:.*": "object stores: `tests/backup` and `tests/conformance` over S3",
    r"(pipeline|column_refresh|publishing)\..*|worker\.runner:.*": "tasks, and jobs of other kinds: `tests/spark`,"
    " `test_killed_drivers.py`, `test_refresh_killed.py` and `test_drivers.py`",
}
"""Functions that write and that no sweep reaches, by a pattern of their names, and what shows them instead."""


def write_places() -> set[str]:
    """Return the functions that write, as `module:function`: methods of the store that are a transaction, too."""
    return {
        f"{module}:{name}"
        for module, tree in _modules()
        for name, function in _functions(tree.body, "")
        if _is_transaction(function) or any(_WRITES.search(call) for call in _calls(function))
    }


def reached_places(kills: Iterable[str]) -> set[str]:
    """Return the functions that a process was in when it was killed."""
    return {name.replace(".<locals>", "") for kill in kills for name in kill.split(" < ")}


def read_places(file: Path) -> set[str]:
    return set(file.read_text().splitlines())


def record(reached: set[str]) -> None:
    """Note the functions that sweeps have reached."""
    _write_places(REACHED, (read_places(REACHED) | reached) & write_places())
    _write_places(UNREACHED, (read_places(UNREACHED) - reached) & write_places())


def _write_places(file: Path, places: set[str]) -> None:
    file.write_text("".join(f"{place}\n" for place in sorted(places)))


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        yield name, ast.parse(path.read_text())


def _functions(body: Iterable[ast.stmt], outer: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Iterate over functions and methods, those within others as a part of these."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{outer}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{outer}{node.name}", node


def _is_transaction(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) in ("writes", "writes_one_statement") for each in function.decorator_list)


def _calls(function: ast.FunctionDef) -> Iterator[str]:
    return (ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))
