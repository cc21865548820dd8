"""Each thing is done in one place: these tests find a second one."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import tiltyard

SOURCE = Path(tiltyard.__file__).parent

LONG_ENOUGH = 700
"""Characters of a function's syntax tree from which on a second one that differs in names alone is no chance."""
_NAME = re.compile(r"\b(id|arg)='(\w+)'")

PLACES = {
    "versions are recorded": (
        re.compile(r"(?:store|catalog)\.record_versions?\("),
        {
            "tables/commits/recording.py",  # whoever commits: clients, batches, publications, this server
            "tables/versions/records.py",  # versions that storage has already: no commit
        },
    ),
    "rights of whoever stored a definition are looked up as they are now": (
        re.compile(r"refresh_principal\("),
        {
            "access/authorization.py",
            "access/stored_definitions.py",
            "sql/read_grounds.py",  # of a caller whose session lasts
        },
    ),
    "whoever stored a definition is read": (
        re.compile(r"(?:type=|convert\([^()]+, )Principal\)"),
        {
            "catalog/jobs/authorization.py",
            "catalog/functions/secrets.py",
            "catalog/schedules/definitions.py",
            "tables/schema/column_refreshers.py",
            "tables/views/view_sources.py",
        },
    ),
    "transactions of versions are read, by a copy of the dataset, which all other callers cannot use meanwhile": (
        re.compile(r"\.read_transaction\("),
        {"change_feed/table_history.py"},
    ),
    "services outside are asked": (
        re.compile(r"decisions\.(?:require|allowed|authorized)\("),
        {
            "access/authorization.py",
            "model/operations.py",  # about all that the check of a request has allowed, in one go
        },
    ),
}


@pytest.mark.parametrize("what", PLACES)
def test_thing_is_done_in_its_places_alone(what: str) -> None:
    pattern, expected = PLACES[what]
    files = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    assert {name for name, text in files.items() if pattern.search(text)} == expected


def test_whoever_reads_a_stored_principal_checks_it_as_a_definer() -> None:
    _, readers = PLACES["whoever stored a definition is read"]
    assert all("stored_definitions import Definer" in (SOURCE / name).read_text() for name in readers)


def test_no_function_is_written_twice() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(shape := _shape(node)) > LONG_ENOUGH:
                found[shape].append(f"{path.relative_to(SOURCE)}:{node.name}")
    twice = [places for places in found.values() if len(places) > 1]
    assert not twice, "these do the same: one of them can call the other, or both a third"


def _shape(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return what a function does, whatever its variables are called: the tree of its statements."""
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    names: dict[str, str] = {}
    text = "".join(map(ast.dump, statements))
    return _NAME.sub(lambda match: match[1] + names.setdefault(match[2], str(len(names))), text)
