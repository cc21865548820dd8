"""The machinery of the code: what keeps results, queues work, has threads or starts processes is counted."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import make_machinery as script
from tiltyard.runtime.cache import CountedCache
from tiltyard.runtime.machinery import Machine

UNCOUNTED = {
    "api/execution/commit_queue.py": "the clients that wait for one table, which its queue counts",
    "api/execution/upload.py": "the parts of one upload, bounded by its window",
    "console/upload/receiving.py": "how many files of each principal are read, bounded by its own numbers",
    "flight/queries.py": "the messages of one query, which its reader takes",
    "sql/dialects/json_functions.py": "texts of one query, in its process, which ends with it",
    "sql/dialects/json_documents.py": "paths of one query, in its process",
    "sql/dialects/text_functions.py": "patterns of one query, in its process",
    "storage/caches/column_cache.py": "the versions of a table in memory, a part of that cache",
    "storage/caches/shared_snapshots.py": "earlier versions of an open table, a part of that cache",
    "storage/disk_cache/ranges.py": "versions that are read by ranges, a part of that cache",
    "storage/caches/version_cache.py": "what requests have read of an open version, which it goes with",
    "tables/commits/child_commits.py": "answers of the parent in a child process, which has one call at a time",
    "tables/query/routes/index_in_memory.py": "the filters of an open version, which they go with",
}
"""What is no machinery of a process, though it looks like it, with the reason."""
GOALS = {"cache": 14, "memo": 8, "batcher": 8, "pool": 10, "child": 6}
"""How many there may be of each kind: a new one takes the place of another, or says in its commit what it earns."""


@pytest.fixture(scope="module")
def pieces() -> list[Any]:
    """Find the machinery once: not at the import, which each process does that collects tests."""
    return list(script.find_pieces(script.SOURCE))


def test_machinery_is_made_by_its_classes_and_named(pieces: list[Any]) -> None:
    uncounted = {piece.place.partition(":")[0] for piece in pieces if not piece.name}
    assert uncounted == set(UNCOUNTED), (
        "Make it by a class of tiltyard.runtime (cache, pool, batcher, child_process), with a name and a purpose, "
        "or say above why it is none, or no more."
    )


def test_machinery_of_a_name_is_made_in_one_place(pieces: list[Any]) -> None:
    named = [piece for piece in pieces if piece.name]
    assert len({(piece.kind, piece.name) for piece in named}) == len(named)
    assert [piece.name for piece in named if piece.kind == "cache" and not (piece.bound and piece.invalidated_by)] == []
    assert [piece.name for piece in named if piece.kind == "pool" and not piece.bound] == []


def test_every_class_of_machinery_is_closed_and_has_figures() -> None:
    importlib.import_module("tiltyard.bootstrap")
    classes, pending = set[type[Machine]](), list(Machine.__subclasses__())
    while pending:
        classes.add(found := pending.pop())
        pending += found.__subclasses__()
    made = [found for found in classes if found.__module__.startswith("tiltyard") and found is not CountedCache]
    assert len(made) > len(script.KINDS)
    assert [found for found in made if found.close is Machine.close or found.figures is Machine.figures] == []


@pytest.mark.parametrize("kind", GOALS)
def test_machinery_does_not_grow(pieces: list[Any], kind: str) -> None:
    assert len({piece.name for piece in pieces if piece.kind == kind and piece.name}) <= GOALS[kind]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("@lru_cache(maxsize=8)\ndef f(x): ...", "memo"),
        ("@cache\ndef f(x): ...", "memo"),
        ("kept = OrderedDict()", "cache"),
        ("def f(self):\n    if len(self.kept) >= 9:\n        self.kept.clear()", "cache"),
        ("def f():\n    if len(kept) > 9:\n        kept = {}", "cache"),
        ("class A:\n    def __init__(self):\n        self.queue = deque()", "batcher"),
        ("with ThreadPoolExecutor(4) as pool: ...", "pool"),
        ("subprocess.run(['true'])", "child"),
        ("child = subprocess.Popen(['true'])", "child"),
        ("context.Process(target=f)", "child"),
    ],
)
def test_find_pieces_without_a_class_finds_it(code: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(code)
    assert [(piece.kind, piece.name) for piece in script.find_pieces(tmp_path)] == [(kind, "")]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("A = Cache('a', 'b', max_entries=LIMIT, invalidated_by='c')\nLIMIT = 1 << 4", "cache"),
        (
            "class A(WorkQueue):\n  def f(self):\n    self.q = deque()\n    super().__init__('a', 'b')",
            "batcher",
        ),
        ("@cached('a', 'b', max_entries=16)\ndef f(x): ...", "memo"),
    ],
)
def test_find_pieces_of_a_class_names_it(code: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(code)
    [piece] = script.find_pieces(tmp_path)
    assert (piece.kind, piece.name, piece.purpose) == (kind, "a", "b")
    assert kind == "batcher" or piece.bound == "16 entries"


def test_find_pieces_of_constants_and_local_queues_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("@cache\ndef constant(): ...\n\ndef f():\n    window = deque()\n")
    assert list(script.find_pieces(tmp_path)) == []
