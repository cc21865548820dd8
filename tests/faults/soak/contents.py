"""Read every version of a table from its location, without the server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import lance

from tests.faults.soak.journal import Row
from tiltyard.change_feed.table_history import read_transaction

COLUMNS = ["key", "by"]
_MARK = re.compile(r"by <> '([^']+)'")


class TornTableError(Exception):
    """A version is missing, or cannot be opened."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version's rows, and its commit; `mark` is the attempt of a delete, `restored` the version of a restore."""

    number: int
    operation: str
    rows: Counter[Row]
    mark: str = ""
    restored: int = 0


def predicate(name: str, keys: tuple[str, ...]) -> str:
    """Build the predicate of a delete; its second half is always true, and identifies the attempt in Lance's log."""
    quoted = ", ".join(f"'{key}'" for key in keys)
    return f"key IN ({quoted}) AND by <> '{name}'"


def numbers_of(location: str, options: Mapping[str, str]) -> list[int]:
    """List the versions that a reader without the server finds."""
    dataset = lance.dataset(location, storage_options=dict(options))
    return sorted(version["version"] for version in dataset.version_refs())


def tags_of(location: str, options: Mapping[str, str]) -> dict[str, int]:
    """List the tags that a reader without the server finds."""
    tags = lance.dataset(location, storage_options=dict(options)).tags.list()
    return {name: tag["version"] for name, tag in tags.items()}


def read_versions(location: str, options: Mapping[str, str]) -> Iterator[Version]:
    """Read every version, from the first on. Raises TornTableError for a gap, or a version that cannot be opened."""
    numbers = numbers_of(location, options)
    if missing := sorted(set(range(1, max(numbers) + 1)) - set(numbers)):
        raise TornTableError(f"versions {missing[:10]} are missing below {max(numbers)}")
    for number in numbers:
        try:
            yield _read(location, options, number)
        except Exception as error:
            raise TornTableError(f"version {number} does not open: {error}") from error


def _read(location: str, options: Mapping[str, str], number: int) -> Version:
    dataset = lance.dataset(location, version=number, storage_options=dict(options))
    table = dataset.to_table(columns=COLUMNS)
    rows: Counter[Row] = Counter(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))
    transaction = read_transaction(dataset, number)
    if transaction is None:
        raise TornTableError("it has no transaction")
    operation = transaction.operation
    mark = _MARK.search(getattr(operation, "predicate", ""))
    restored = operation.version if isinstance(operation, lance.LanceOperation.Restore) else 0
    return Version(number, type(operation).__name__, rows, mark[1] if mark else "", restored)
