"""No modules import each other in a circle, not for their types alone either: what is below knows nothing above it.

Imports inside functions are left out: those are late on purpose, and each says why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tiltyard

SOURCE = Path(tiltyard.__file__).parent
TOGETHER = frozenset({"catalog", "sql", "tables"})
"""Packages of operations, which use each other: one layer in pyproject.toml. Their modules have no circle."""


def imports_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what a module imports outside functions, under TYPE_CHECKING too: a module, and the name out of it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        else:
            yield from imports_of(node)


@cache
def read_modules() -> dict[str, set[str]]:
    """Return the modules by name, with those that each imports."""
    files = {
        ".".join(("tiltyard", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in SOURCE.rglob("*.py")
        if file.parent != SOURCE or file.name != "__init__.py"  # the version, and what is imported on demand
    }
    modules: dict[str, set[str]] = {}
    for name, file in files.items():
        found = imports_of(ast.parse(file.read_text()))
        imported = {inner if inner in files else module for module, inner in found}
        modules[name] = {other for other in imported if other in files and other != name}
    return modules


def find_cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """Return a circle, as the names that lead back to the first; nothing where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]
    return []


def package_of(module: str) -> str:
    """Return the package of a module, directly below ours; the three of the operations are one."""
    package = module.split(".")[1] if "." in module else ""
    return "operations" if package in TOGETHER else package


def test_modules_import_each_other_in_no_circle() -> None:
    assert find_cycle(read_modules()) == []


def test_packages_import_each_other_in_no_circle() -> None:
    packages: dict[str, set[str]] = {}
    for name, imported in read_modules().items():
        if own := package_of(name):
            packages.setdefault(own, set()).update({package_of(other) for other in imported} - {own, ""})
    assert find_cycle(packages) == []


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("from tiltyard.model import ids, jobs", {"tiltyard.model.ids", "tiltyard.model.jobs"}),
        ("if TYPE_CHECKING:\n    from tiltyard.store import Store", {"tiltyard.store.Store"}),
        ("class A:\n    from tiltyard.config import DAY_MS", {"tiltyard.config.DAY_MS"}),
        ("def late():\n    from tiltyard.store import Store", set()),
    ],
)
def test_imports_for_types_are_seen_and_late_ones_are_not(source: str, imported: set[str]) -> None:
    assert {inner for _, inner in imports_of(ast.parse(source))} == imported
