"""The source tables of a view, and who may read them.

A refresh runs with a worker's access to all tables, and its rows are for every reader of the view. So the principal who
requests it and the definer (who created the view) must each have `read` on every table of its query, without policies:
otherwise a view would bypass grants and policies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
)

from tiltyard.access.authorization import authorize_table
from tiltyard.access.stored_definitions import Definer
from tiltyard.change_feed.table_history import read_transactions
from tiltyard.model.ids import parse_id, table_id
from tiltyard.model.principals import Principal, Privilege
from tiltyard.model.views.definitions import ViewDefinition, ViewKind, ViewLineage, parse_sources
from tiltyard.storage.errors import lance_errors
from tiltyard.store import ViewRecord
from tiltyard.tables.lance_sql.select_queries import parse_select

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.ids import Id
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.store import TableRecord

_MAX_VERSIONS = 100
"""How many versions are searched for the last refresh: index builds and compactions come between two of them."""


def record_view(ctx: Context, path: Id, definition: ViewDefinition) -> None:
    """Record the definer and the definition of a new view."""
    definer = msgspec.json.encode(ctx.principal).decode()
    ctx.store.set_view(ctx.look_up_table(path).id, ViewRecord(definition.digest, definer))


def find_definer(ctx: Context, record: TableRecord, definition: ViewDefinition) -> Definer:
    """Return the principal who created a view.

    Raises InvalidTableStateError if the definition in the table's metadata is not the recorded one.
    """
    view = ctx.store.describe_view(record.id)
    if view is None:
        raise InvalidTableStateError(
            "This view was not created in this catalog, only its table was registered: create the view again, to "
            "refresh it."
        )
    if view.definition != definition.digest:
        raise InvalidTableStateError(
            "The definition of this view was changed in its table's metadata: create the view again to refresh it."
        )
    return view_definer(msgspec.json.decode(view.definer, type=Principal))


def view_definer(principal: Principal) -> Definer:
    """Return a principal as the one who creates a view."""
    return Definer(
        principal,
        "The view would show rows to all who may read the view, and {name}, its creator, may not read all of them: "
        "let a principal create it who may read its tables.",
    )


def resolve_sources(ctx: Context, view: Id, definition: ViewDefinition, definer: Definer) -> dict[str, str]:
    """Return the location of each table of a view's query, by its id; caller and definer may read all of them.

    Whatever has a name now is read, and only by those who may read that very table. Raises InvalidInputError (no query,
    or one of the view itself), TableNotFoundError, NamespaceNotFoundError (none that the caller may see),
    PermissionDeniedError.
    """
    locations, own = {}, definer.context(ctx)
    for name in source_names(definition):
        path = table_id(parse_id(name))
        if path == view:
            raise InvalidInputError("A view cannot read itself.")
        record = _readable(ctx, path)
        definer.authorize_table(own, path, record, Privilege.READ.value)
        locations[name] = record.location
    return locations


def source_names(definition: ViewDefinition) -> tuple[str, ...]:
    """Return the ids of the tables of a view's query. Raises InvalidInputError."""
    if definition.kind is ViewKind.SELECT:
        names: tuple[str, ...] = (str(parse_select(definition.query).source),)
    else:
        names = parse_sources(definition.query)
    return tuple(map(definition.source_id, names))


def _readable(ctx: Context, path: Id) -> TableRecord:
    if ctx.is_unchecked:
        return ctx.look_up_table(path)
    return authorize_table(msgspec.structs.replace(ctx, resolved=None), path, Privilege.READ.value)


def source_version_properties(
    ctx: Context, record: TableRecord, branch: Branch, snapshot: CachedVersion
) -> dict[str, str]:
    """Return the source versions of a view's rows as table properties; none for one that was not refreshed lately.

    They are kept with the snapshot, which readers share until the table's version changes.
    """
    if ViewDefinition.from_metadata(snapshot.dataset.schema.metadata) is None:
        return {}
    return snapshot.fact(_read_source_versions, ctx, record, branch)


def _read_source_versions(
    dataset: lance.LanceDataset, ctx: Context, record: TableRecord, branch: Branch
) -> dict[str, str]:
    ctx.storage.manifests.check_history(record.location, branch)
    with lance_errors(dataset):
        for _, transaction in read_transactions(dataset, int(dataset.version) - _MAX_VERSIONS):
            lineage = ViewLineage.from_properties(transaction.transaction_properties)
            if lineage is not None:
                versions = {name: source.version for name, source in lineage.sources.items()}
                return {"tiltyard.view.sources": msgspec.json.encode(versions).decode()}
    return {}
