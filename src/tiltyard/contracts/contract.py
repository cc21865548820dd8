"""The contract of a table: its checks, what happens where rows fail them, and who may commit.

Each check has a level: that of the contract (`on_failure`), or its own by a word before it.

    fail     the whole write is refused
    reject   rows that fail are parked, the others are written
    warn     failing rows are counted, and written       `warn: between(score, 0, 1)`
    test     no write is checked, tests are              `test: foreign_key(genre, genres.name)`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from tiltyard.contracts.checks import QualityCheck, parse_check, validate_checks
from tiltyard.contracts.row_checks import ROW_KINDS
from tiltyard.model.refusals import RefusedError
from tiltyard.model.text.shown_text import shorten

if TYPE_CHECKING:
    import pyarrow as pa

PROPERTY = "tiltyard.contract"
"""The property of a table that shows its contract, as JSON; only the server sets it."""
MAX_CHECKS = 100
"""Checks of one contract: a commit evaluates all of them."""
MAX_CHECK_CHARACTERS = 20_000
"""Characters of one check: in_set may list a thousand values."""
_TEST = re.compile(r"test *: *")
_OF_RUNS = ("rejected", "distribution")
"""Kinds of checks that are about a run of a job."""
_OF_TESTS = ("freshness", "foreign_key")
"""Kinds of checks that a commit cannot hold: time passes, and the other table changes without this one."""


class Level(StrEnum):
    """What happens where rows fail a check."""

    FAIL = "fail"
    REJECT = "reject"
    WARN = "warn"
    TEST = "test"


class Clients(StrEnum):
    """What happens to commits of clients that write files themselves: their new rows are read, or they are refused."""

    CHECK = "check"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class ContractCheck:
    """A check of a contract, and its level."""

    check: QualityCheck
    level: Level

    @property
    def text(self) -> str:
        """Return the check without the word of its level."""
        return self.check.text


class Contract(msgspec.Struct, frozen=True):
    """A contract, as the catalog keeps it: texts as they were written, and the columns that commits are checked by.

    `token` tells it from every other one. `key` are the columns of the primary key by which `unique` holds, if it is
    said of columns that have one.
    """

    token: str
    checks: tuple[str, ...]
    on_failure: Level
    clients: Clients
    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str) -> Contract:
        """Decode the text of the catalog."""
        return msgspec.json.decode(text, type=cls)

    def to_json(self) -> str:
        """Encode for the catalog."""
        return msgspec.json.encode(self).decode()

    def to_property(self) -> str:
        """Return what describes it to clients: JSON of checks, on_failure and clients."""
        fields = {"checks": self.checks, "on_failure": self.on_failure, "clients": self.clients}
        return msgspec.json.encode(fields).decode()

    def parsed(self) -> list[ContractCheck]:
        """Return its checks. Raises RefusedError."""
        return [parse_contract_check(text, self.on_failure) for text in self.checks]

    def row_checks(self, *levels: Level) -> list[ContractCheck]:
        """Return its checks of single rows, at some levels; at those that commits are checked by, if none are named."""
        wanted = levels or (Level.FAIL, Level.REJECT, Level.WARN)
        return [each for each in self.parsed() if each.check.kind in ROW_KINDS and each.level in wanted]

    def count_checks(self) -> list[ContractCheck]:
        """Return its checks of how many rows the table has, but those of tests."""
        return [each for each in self.parsed() if each.check.kind == "rows" and each.level is not Level.TEST]


def property_contract(text: str) -> Contract:
    """Return a contract by the property that describes it: its columns are not known then."""
    fields = msgspec.json.decode(text)
    return Contract("", tuple(fields["checks"]), Level(fields["on_failure"]), Clients(fields["clients"]))


def parse_contract_check(text: str, on_failure: Level) -> ContractCheck:
    """Parse a check of a contract. Raises RefusedError."""
    if match := _TEST.match(text.strip()):
        return ContractCheck(_without_level(parse_check(text.strip()[match.end() :])), Level.TEST)
    check = parse_check(text)
    return ContractCheck(_without_level(check), Level.WARN if check.warns else on_failure)


def _without_level(check: QualityCheck) -> QualityCheck:
    return replace(check, text=re.sub(r"^\s*warn *: *", "", check.text).strip(), warns=False)


def declare(
    token: str,
    texts: Sequence[str],
    on_failure: Level,
    clients: Clients,
    schema: pa.Schema,
    key: Sequence[str],
    check_condition: Callable[[str], None],
    *,
    is_tested_only: bool = False,
) -> Contract:
    """Return the contract of a table with this schema and primary key (none: empty).

    `check_condition` raises for SQL that is not to be planned. Raises RefusedError for texts that are no checks,
    columns that are not there, and what no commit can hold, unless there are no commits and the table `is_tested_only`.
    """
    if not 0 < len(texts) <= MAX_CHECKS:
        raise RefusedError(f"A contract has 1 to {MAX_CHECKS} checks: these are {len(texts)}.")
    for text in texts:
        if len(text) > MAX_CHECK_CHARACTERS:
            raise RefusedError(f"A check has up to {MAX_CHECK_CHARACTERS} characters: one has {len(text)}.")
    if on_failure is Level.TEST:
        raise RefusedError("on_failure is fail, reject or warn: write `test: ` before checks that tests alone make.")
    checks = [parse_contract_check(text, on_failure) for text in texts]
    if len({each.text for each in checks}) < len(checks):
        raise RefusedError("A check is in this contract twice: once is enough.")
    for each in checks:
        if each.check.kind == "expect":
            check_condition(each.check.arguments[0])
    validate_checks([each.check for each in checks], schema)
    for each in checks:
        _refuse_what_is_not_held(replace(each, level=Level.TEST) if is_tested_only else each, key)
    has_key = not is_tested_only and any(
        each.check.kind == "unique" and each.level is not Level.TEST for each in checks
    )
    contract = Contract(token, tuple(texts), on_failure, clients)
    columns = dict.fromkeys(name for each in contract.row_checks() for name in each.check.columns_of(schema))
    return msgspec.structs.replace(contract, columns=tuple(columns), key=tuple(key) if has_key else ())


def _refuse_what_is_not_held(each: ContractCheck, key: Sequence[str]) -> None:
    """Raise RefusedError for a check that no commit can hold at its level; the sentence says what to write instead."""
    check, level = each.check, each.level
    if check.kind in _OF_RUNS:
        raise RefusedError(f"The check {check.text} is about a run of a job: give it to the job (--checks).")
    if level is Level.TEST:
        return
    if check.kind in _OF_TESTS:
        why = "time passes without commits" if check.kind == "freshness" else "the other table changes without this one"
        raise RefusedError(f"The check {check.text}: no commit can hold it, since {why}. Write test: {check.text}")
    if check.kind == "unique" and not (key and set(key) <= set(check.arguments)):
        raise RefusedError(
            f"The check {check.text}: commits hold it by a primary key on these columns (SetTablePrimaryKey), which "
            f"this table has not. Declare the key, or write test: {check.text}"
        )
    if check.kind in ("rows", "unique") and level is Level.REJECT:
        raise RefusedError(f"The check {check.text} is about the whole table: there are no rows of it to reject.")


def describe_row(values: Iterable[tuple[str, object]], may_see: bool) -> str:
    """Return the values of a failing row as text, cut where they are long; 'a row' for who may not see them."""
    if not may_see:
        return "a row"
    return "a row with " + ", ".join(f"{name} = {shorten(repr(value), _SHOWN_CHARACTERS)}" for name, value in values)


_SHOWN_CHARACTERS = 100
