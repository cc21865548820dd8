"""Porcupine's models: histories that are wrong are found, and those that are right are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.histories.clients import EFFECT_MS, settle_rights
from tests.histories.conftest import NEEDS_GO
from tests.histories.history import ILLEGAL, OK, Call, judge

pytestmark = [pytest.mark.extended, NEEDS_GO]
Step: TypeAlias = "tuple[str, int, int | None, str, int, list[int]]"


def step(
    action: str, begin: int, end: int | None, result: str = "done", value: int = 0, values: Sequence[int] = ()
) -> Step:
    return action, begin, end, result, value, list(values)


SETS: Mapping[str, Mapping[str, list[Step]]] = {
    ILLEGAL: {
        "a row that was acknowledged is not read": [step("add", 1, 2, value=3), step("read", 3, 4)],
        "a row that was deleted is read": [
            step("add", 1, 2, value=3), step("remove", 3, 4, value=3), step("read", 5, 6, values=[3])
        ],
        "a read goes back": [
            step("add", 1, 9, value=3), step("read", 2, 3, values=[3]), step("read", 4, 5)
        ],
        "a keyed row is there twice": [
            step("add", 1, 2, value=3), step("add", 3, 4, value=3), step("list", 5, 6, values=[3, 3])
        ],
        "a keyed row whose answer was lost is there twice": [
            step("add", 1, None, "", value=3), step("add", 3, 4, value=3), step("list", 5, 6, values=[3, 3])
        ],
        "a keyed row is not there": [
            step("add", 1, None, "", value=3), step("add", 3, 4, value=3), step("list", 5, 6)
        ],
        "a keyed row is there that was refused": [
            step("add", 1, 2, "refused", value=3), step("list", 3, 4, values=[3])
        ],
        "two create one name": [step("create", 1, 4), step("create", 2, 5)],
        "a name is refused that nobody has": [step("create", 1, 2, "refused")],
        "a name is there that was dropped": [step("create", 1, 2), step("drop", 3, 4), step("has", 5, 6, "yes")],
        "a right is used after it was revoked": [step("add", 1, 2), step("remove", 3, 4), step("has", 5, 6, "yes")],
        "a key does not hold that was created": [step("add", 1, 2), step("has", 3, 4, "no")],
        "a key does not hold before its end": [
            step("add", 1, 2), step("remove", 11, 12), step("has", 3, 10, "no"), step("has", 13, 14, "no")
        ],
        "a key holds after its end": [step("add", 1, 2), step("remove", 11, 12), step("has", 13, 14, "yes")],
        "a key holds again": [
            step("add", 1, 2), step("remove", 3, 9), step("has", 4, 5, "no"), step("has", 6, 7, "yes")
        ],
    },
    OK: {
        "what nobody knows was done": [step("add", 1, None, "", value=3), step("read", 3, 4, values=[3])],
        "what nobody knows was not done": [step("add", 1, None, "", value=3), step("read", 3, 4)],
        "calls at once, in either order": [step("add", 1, 9, value=3), step("read", 2, 3)],
        "a row without a key is there twice": [
            step("add", 1, 2, value=3), step("add", 3, 4, value=3), step("read", 5, 6, values=[3, 3])
        ],
        "a keyed row is there once": [
            step("add", 1, None, "", value=3), step("add", 3, 4, value=3), step("list", 5, 6, values=[3])
        ],
        "a keyed row was refused, and its repeat was not": [
            step("add", 1, 5, "refused", value=3), step("add", 2, 4, value=3), step("list", 6, 7, values=[3])
        ],
        "a key ends at some moment": [
            step("add", 1, 2), step("remove", 11, 14), step("has", 12, 13, "yes"), step("has", 15, 16, "no")
        ],
    },
}  # fmt: skip
TAGS: Mapping[str, Mapping[str, list[Step]]] = {
    ILLEGAL: {
        "a tag is where it was not moved": [
            step("create", 1, 2, value=1), step("move", 3, 4, value=2), step("get", 5, 6, value=1)
        ],
        "a tag is moved that was dropped": [
            step("create", 1, 2, value=1), step("drop", 3, 4), step("move", 5, 6, value=2)
        ],
    },
    OK: {"two create one tag for one version": [step("create", 1, 4, value=1), step("create", 2, 5, value=1)]},
}  # fmt: skip
VERSIONS: Mapping[str, Mapping[str, list[Step]]] = {
    ILLEGAL: {
        "two commit one version": [step("swap", 1, 4, values=[2, 0]), step("swap", 2, 5, values=[2, 0])],
        "a version is refused that nobody has": [step("swap", 1, 2, "refused", values=[2, 0])],
        "a version was acknowledged, and is not the latest": [
            step("swap", 1, 2, values=[2, 0]), step("get", 3, 4, value=0, values=[1])
        ],
        "a version was refused, and is the latest": [
            step("swap", 1, 2, values=[2, 0]),
            step("swap", 3, 4, "refused", values=[2, 0]),
            step("get", 5, 6, value=0, values=[3]),
        ],
        "half of two versions": [
            step("swap", 1, 9, values=[2, 2]),
            step("get", 2, 3, value=0, values=[2]),
            step("get", 4, 5, value=1, values=[1]),
        ],
        "half of two versions that nobody knows of": [
            step("swap", 1, None, "", values=[2, 2]),
            step("get", 2, 3, value=0, values=[2]),
            step("get", 4, 5, value=1, values=[1]),
        ],
        "one of two was there, and both are acknowledged": [
            step("swap", 1, 2, values=[2, 0]), step("swap", 3, 4, values=[2, 2])
        ],
        "a version goes back": [
            step("swap", 1, 9, values=[0, 2]),
            step("get", 2, 3, value=1, values=[2]),
            step("get", 4, 5, value=1, values=[1]),
        ],
    },
    OK: {
        "one of two commits": [step("swap", 1, 4, values=[2, 0]), step("swap", 2, 5, "refused", values=[2, 2])],
        "what nobody knows comes late": [
            step("swap", 1, None, "", values=[2, 0]),
            step("get", 2, 3, value=0, values=[1]),
            step("swap", 4, 5, "refused", values=[2, 0]),
        ],
        "what nobody knows was overtaken": [
            step("swap", 1, None, "", values=[2, 0]),
            step("swap", 2, 3, values=[2, 0]),
            step("get", 4, 5, value=0, values=[2]),
        ],
    },
}  # fmt: skip


def test_wrong_histories_are_found(checker: Path) -> None:
    calls = []
    for kind, histories in (("set", SETS), ("register", TAGS), ("versions", VERSIONS)):
        for verdict, named in histories.items():
            for name, steps in named.items():
                calls += [
                    Call(f"{verdict} {kind}: {name}", kind, 0, action, value, begin, end, result, values)
                    for action, begin, end, result, value, values in steps
                ]
    verdicts = judge(checker, calls)
    assert len(verdicts) == 36
    assert {name: verdict for name, verdict in verdicts.items() if not name.startswith(verdict)} == {}


def test_rights_that_hold_for_too_long_are_found_and_none_that_a_server_may_believe_in(checker: Path) -> None:
    ms = 1_000_000

    def uses(name: str, *seen: tuple[int, int, str]) -> list[Call]:
        """A key that is created, and revoked 10 ms later; a client sees at some ms whether it holds."""
        changes = [
            Call(name, "set", 0, "add", 0, 1, 2, "done"),
            Call(name, "set", 0, "remove", 0, 9 * ms, 10 * ms, "done"),
        ]
        return changes + [
            Call(name, "set", client, "has", 0, at * ms, at * ms + 1, result) for client, at, result in seen
        ]

    calls = [
        *uses("key another server believes", (1, 12, "no"), (2, 15, "yes"), (2, 50, "no")),
        *uses("key too long", (1, 10 + EFFECT_MS + 1, "yes")),
        *uses("key again", (1, 12, "no"), (1, 15, "yes")),
        *uses("key at once", (1, 5, "no")),
    ]
    assert judge(checker, settle_rights(calls)) == {
        "key another server believes seen by 1": OK,
        "key another server believes seen by 2": OK,
        "key too long seen by 1": ILLEGAL,
        "key again seen by 1": ILLEGAL,
        "key at once seen by 1": ILLEGAL,
    }
