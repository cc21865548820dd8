"""Open a change feed: tags resolved to versions, the key that a table declares, and what opens its versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lance_namespace as upstream
from lance_namespace.errors import InvalidInputError

from tiltyard.change_feed.planning import plan_changes
from tiltyard.model.columns.primary_keys import PROPERTY, unenforced_key

if TYPE_CHECKING:
    import lance

    from tiltyard.change_feed.groups import ChangePlan
    from tiltyard.pipeline.catalog_client import Table


@dataclass(frozen=True, slots=True)
class ChangeFeed:
    """The changes of a table between two versions: the plan, and the dataset of the newer one."""

    plan: ChangePlan
    on: tuple[str, ...]
    dataset: lance.LanceDataset
    branch: str | None

    def open_version(self, version: int) -> lance.LanceDataset:
        """Open a version that the plan names."""
        return self.dataset.checkout_version((self.branch, version) if self.branch else version)


def open_feed(
    table: Table,
    since: int | str,
    until: int | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    on: Sequence[str] | None = None,
    branch: str | None = None,
) -> ChangeFeed:
    """Plan the changes after a version or tag, up to another one (None: the newest).

    `on` are columns that identify a row, by default the table's primary key. Raises InvalidInputError, RefusedError,
    TableNotFoundError, TableVersionNotFoundError, TableTagNotFoundError, TableBranchNotFoundError.
    """
    first = resolve_version(table, since, branch)
    dataset = table.dataset(None if until is None else resolve_version(table, until, branch), branch)
    names = tuple(on) if on is not None else declared_key(table, dataset)
    plan = plan_changes(dataset, first, columns=columns, on=names, branch=branch)
    return ChangeFeed(plan, names, dataset, branch)


def resolve_version(table: Table, version: object, branch: str | None) -> int:
    """Return the number of a version, or of a tag's version.

    Raises InvalidInputError (also for what is neither a number nor a text), TableTagNotFoundError.
    """
    if isinstance(version, int):
        return version
    if not isinstance(version, str):
        raise InvalidInputError(f"A version is a number, or the name of a tag, and not {version!r}.")
    tag = table.client.get_table_tag_version(upstream.GetTableTagVersionRequest(id=table.id, tag=version))
    if (tag.branch or None) != branch:
        raise InvalidInputError(f"The tag '{version}' is of {tag.branch or 'main'}: name that as the branch.")
    return int(tag.version)


def declared_key(table: Table, dataset: lance.LanceDataset) -> tuple[str, ...]:
    """Return the columns of the primary key that a table has, enforced or only declared; () without one."""
    text = (table.describe().properties or {}).get(PROPERTY)
    names = json.loads(text) if text else unenforced_key(dataset.schema)
    return tuple(name for name in names if name in dataset.schema.names)
