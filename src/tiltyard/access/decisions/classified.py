"""What a service that decides is told of how an object and its columns are classified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import (
    InvalidTableStateError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)
from msgspec import structs

from tiltyard.access.classifications import (
    classifications_of_namespace,
    classifications_of_table,
    derived_classifications,
)
from tiltyard.model.decisions import ToldClassification
from tiltyard.model.ids import Id
from tiltyard.store.access.grants import NAMESPACE, TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context
    from tiltyard.model.decisions import AskedObject


_NONE = (TableNotFoundError, NamespaceNotFoundError, InvalidTableStateError, PermissionDeniedError)
"""An object is gone, or to be created; the last two are of an entry below a mount that cannot be used."""


def classified(ctx: Context, each: AskedObject) -> AskedObject:
    """Return an object with its classifications, inherited ones included. Raises ServiceUnavailableError."""
    found: list[ToldClassification] = []
    try:
        if each.kind == TABLE:
            found = list(_of_table(ctx, ctx.look_up_table(Id(each.path)).id))
        elif each.kind == NAMESPACE:
            namespace = classifications_of_namespace(ctx.store, ctx.find_namespace(Id(each.path)).id)
            found = [ToldClassification(record.key, record.value) for record in namespace.values()]
    except _NONE:
        pass
    ordered = sorted(dict.fromkeys(found), key=lambda told: (told.column, told.key, told.value))
    return structs.replace(each, classifications=tuple(ordered))


def _of_table(ctx: Context, table_id: int) -> Iterator[ToldClassification]:
    table = classifications_of_table(ctx.store, table_id)
    yield from (ToldClassification(record.key, record.value) for record in table.inherited.values())
    own = set[tuple[str, str]]()
    for column, by_key in table.columns.items():
        if column.path is not None:
            own |= {(column.path.casefold(), key) for key in by_key}
            yield from (ToldClassification(each.key, each.value, column.path) for each in by_key.values())
    for each in derived_classifications(ctx.store, table_id).classifications:
        if each.value is not None and (each.column.casefold(), each.key) not in own:
            yield ToldClassification(each.key, each.value, each.column)
