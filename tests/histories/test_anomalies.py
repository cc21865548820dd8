"""The checker of transactions names the anomalies of histories that are wrong, and none of those that are right."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from tests.histories.anomalies import Append, Outcome, Read, Transaction, find_anomalies
from tests.histories.publications import Lists, judge_publications
from tests.services.cases import check_each

History: TypeAlias = "tuple[list[Transaction], Mapping[str, Sequence[int]], Mapping[str, int]]"


def did(*steps: tuple[str, list[int]] | tuple[str, int], **fields: object) -> Transaction:
    """A transaction: a list with the values that it read of it, or with one that it appended."""
    made = [Append(name, what) if isinstance(what, int) else Read(name, what) for name, what in steps]
    return Transaction(list(made), **fields)  # type: ignore[arg-type]


HISTORIES: Mapping[str, History] = {
    "one after the other": ([did(("a", []), ("a", 1)), did(("a", [1]), ("a", 2))], {"a": [1, 2]}, {}),
    "reads its own": ([did(("a", []), ("a", 1), ("a", [1]))], {"a": [1]}, {}),
    "several in one, seen whole": ([did(("a", 1), ("a", 2)), did(("a", [1, 2]))], {"a": [1, 2]}, {}),
    "nobody knows, and it was": ([did(("a", 1), outcome=Outcome.UNKNOWN), did(("a", [1]))], {"a": [1]}, {}),
    "nobody knows, and it was not": ([did(("a", 1), ("a", [1]), outcome=Outcome.UNKNOWN)], {"a": []}, {}),
    "refused, and not there": ([did(("a", 1), ("a", [1]), outcome=Outcome.REFUSED)], {"a": []}, {}),
    "nobody knows, and half of it was": (
        [did(("a", 1), ("b", 2), outcome=Outcome.UNKNOWN)], {"a": [1], "b": []}, {"lost": 1}
    ),
    "published, and not there": ([did(("a", 1))], {"a": []}, {"lost": 1}),
    "appended twice": ([did(("a", 1))], {"a": [1, 1]}, {"duplicate": 1}),
    "read in another order": (
        [did(("a", 1)), did(("a", 2)), did(("a", [2]))], {"a": [1, 2]}, {"order": 1, "G-single": 1}
    ),
    "its own is not read": ([did(("a", 1), ("a", []))], {"a": [1]}, {"internal": 1}),
    "G0": (
        [did(("a", 1), ("b", 2)), did(("a", 3), ("b", 4))], {"a": [1, 3], "b": [4, 2]}, {"G0": 2}
    ),
    "G1a, of nobody": ([did(("a", [7]))], {"a": [7]}, {"G1a": 1}),
    "G1a, read and gone": (
        [did(("a", 1), outcome=Outcome.REFUSED), did(("a", [1]))], {"a": []}, {"G1a": 1, "order": 1}
    ),
    "G1b": (
        [did(("a", 1), ("a", 2)), did(("a", [1]))], {"a": [1, 2]}, {"G1b": 1, "G-single": 1}
    ),
    "G1c": ([did(("b", [2]), ("a", 1)), did(("a", [1]), ("b", 2))], {"a": [1], "b": [2]}, {"G1c": 2}),
    "G-single, a lost update": (
        [did(("a", []), ("a", 1)), did(("a", []), ("a", 2))], {"a": [1, 2]}, {"G-single": 1}
    ),
    "G-single, a read in between": (
        [did(("a", 1), ("b", 2)), did(("a", []), ("b", [2]))], {"a": [1], "b": [2]}, {"G-single": 1}
    ),
    "G2-item": (
        [did(("a", []), ("b", 1)), did(("b", []), ("a", 2))], {"a": [2], "b": [1]}, {"G2-item": 2}
    ),
    "in an order that time excludes": (
        [did(("a", 1), begin=5, end=6), did(("a", 2), begin=1, end=2)], {"a": [1, 2]}, {"G0-realtime": 2}
    ),
    "what was published before is not read": (
        [did(("a", 1), begin=1, end=2), did(("a", []), begin=3, end=4)],
        {"a": [1]},
        {"G-single-realtime": 1, "stale": 1},
    ),
    "nothing is stale in time": (
        [did(("a", 1), begin=1, end=2), did(("a", [1]), ("a", 2), begin=3, end=4)], {"a": [1, 2]}, {}
    ),
    "published while it was not read": (
        [did(("a", 1), begin=1, end=4), did(("a", []), begin=3, end=5)], {"a": [1]}, {}
    ),
    "a reader goes back": (
        [did(("a", 1), begin=1, end=9), did(("a", [1]), begin=2, end=3), did(("a", []), begin=4, end=5)],
        {"a": [1]},
        {"G-single-realtime": 1},
    ),
    "what was published is seen in turns": (
        [did(("a", 1), ("b", 2), begin=1, end=9), did(("a", [1]), begin=2, end=3), did(("b", []), begin=4, end=5)],
        {"a": [1], "b": [2]},
        {"G-single-realtime": 1},
    ),
    "nobody knows when": (
        [did(("a", 1), begin=1, end=2, outcome=Outcome.UNKNOWN), did(("a", []), begin=3, end=4)], {"a": [1]}, {}
    ),
}  # fmt: skip


def test_histories_have_the_anomalies_of_their_names_alone() -> None:
    def check(name: str) -> None:
        history, final, found = HISTORIES[name]
        assert find_anomalies(history, final) == found

    check_each(HISTORIES, check)


def test_histories_of_an_isolation_are_judged_by_it() -> None:
    serializable, snapshot = (Lists([["a"], ["b"]], name) for name in ("serializable", "snapshot"))
    for name, is_wrong in (("G-single, a lost update", 0), ("G2-item", 0), ("G0", 1), ("G1c", 1)):
        history, final, _ = HISTORIES[name]
        assert judge_publications(serializable, history, final), name
        assert bool(judge_publications(snapshot, history, final)) is bool(is_wrong), name
    history, final, _ = HISTORIES["what was published is seen in turns"]
    assert judge_publications(snapshot, history, final) == {"G-single-realtime of appends": 1}


def test_a_serial_history_with_one_change_is_found() -> None:
    """Whatever is taken from a serial history, or put into it, at random."""
    for seed in range(60):
        source = random.Random(seed)
        history, final = _run_in_turn(source, 12)
        assert not find_anomalies(history, final)
        entry = source.choice([each for each in history if any(_changed(step) for step in each.steps)])
        place = source.choice([number for number, step in enumerate(entry.steps) if _changed(step)])
        step = entry.steps[place]
        assert isinstance(step, Read)
        entry.steps[place] = Read(step.name, step.values[:-1])
        assert find_anomalies(history, final), f"seed {seed}: {history}, {final}"


def _changed(step: Read | Append) -> bool:
    return isinstance(step, Read) and bool(step.values)


def _run_in_turn(source: random.Random, number: int) -> tuple[list[Transaction], dict[str, list[int]]]:
    lists: dict[str, list[int]] = {"a": [], "b": []}
    values: Iterator[int] = iter(range(1000))
    history = []
    for moment in range(number):
        entry = Transaction(begin=2 * moment + 1, end=2 * moment + 2)
        for _ in range(3):
            name = source.choice(("a", "b"))
            if source.random() < 0.5:
                entry.steps.append(Read(name, [*lists[name]]))
            else:
                lists[name].append(next(values))
                entry.steps.append(Append(name, lists[name][-1]))
        history.append(entry)
    return history, lists
