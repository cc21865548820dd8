"""What a view reads, and whether those may read it on whose behalf its rows are made.

A refresh runs with all that a worker may read, and its rows are for whoever may read the view. So the one who asks for
it and the one who made the view must each have `read` on every table of its query, with no policy between: else a view
would be a way round grants and policies.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)

from tiltyard.access import Privilege
from tiltyard.access.principal_refresh import present
from tiltyard.access.visibility import seen_table
from tiltyard.model.ids import DEFAULT_DELIMITER, display, parse_id, table_id
from tiltyard.model.principals import Principal
from tiltyard.model.table_history import read_transactions
from tiltyard.model.view_definitions import Made, ViewDefinition, sources_of
from tiltyard.storage.errors import lance_errors
from tiltyard.store.tables.views import ViewRecord

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import TableRecord

_LOOKED_AT = 100
"""How many versions are looked through for a refresh: index builds and compactions come between two of them."""
_MADE_OF: weakref.WeakKeyDictionary[lance.LanceDataset, dict[str, str]] = weakref.WeakKeyDictionary()


def remember_view(ctx: Context, path: Id, definition: ViewDefinition) -> None:
    """Note who made a view, and of what."""
    definer = msgspec.json.encode(ctx.principal).decode()
    ctx.store.set_view(ctx.store.describe_table(path).id, ViewRecord(definition.digest, definer))


def check_definition(ctx: Context, record: TableRecord, definition: ViewDefinition) -> Principal:
    """Who made a view, as they are now. Raises PermissionDeniedError for somebody who was disabled since.

    Raises InvalidTableStateError if what its metadata says is not what was made.
    """
    known = ctx.store.describe_view(record.id)
    if known is None:
        raise InvalidTableStateError(
            "This catalog has not made this view, only found its table: create it anew, and it can be refreshed."
        )
    if known.definition != definition.digest:
        raise InvalidTableStateError(
            "The definition of this view was changed in its table's metadata: create it anew, and it can be refreshed."
        )
    return _as_known(ctx, msgspec.json.decode(known.definer, type=Principal))


def readable_sources(ctx: Context, view: Id, query: str, definer: Principal) -> dict[str, str]:
    """The location of each table of a query, by its id, all of which both may read.

    Raises InvalidInputError (no query, or one of the view itself), TableNotFoundError, NamespaceNotFoundError (none
    that whoever asks may see), PermissionDeniedError.
    """
    found = {}
    for name in sources_of(query):
        path = table_id(parse_id(name, DEFAULT_DELIMITER))
        if path == view:
            raise InvalidInputError("A view cannot read itself.")
        record = _readable(ctx, path)
        if definer.name != ctx.principal.name:
            _check_definer(msgspec.structs.replace(ctx, principal=definer, resolved=None), path)
        found[name] = record.location
    return found


def _readable(ctx: Context, path: Id) -> TableRecord:
    if ctx.principal.administrator:
        return ctx.store.describe_table(path)
    return seen_table(msgspec.structs.replace(ctx, resolved=None), path, Privilege.READ.value)


def _check_definer(ctx: Context, path: Id) -> None:
    try:
        _readable(ctx, path)
    except (PermissionDeniedError, TableNotFoundError, NamespaceNotFoundError) as error:
        raise PermissionDeniedError(
            f"The view would show rows of {display(path)} to all who may read the view, and {ctx.principal.name}, "
            "who made it, may not read all of them: let somebody make it who may."
        ) from error


def _as_known(ctx: Context, definer: Principal) -> Principal:
    try:
        return present(ctx, definer)
    except PermissionDeniedError as error:
        raise PermissionDeniedError(
            f"{error} It made this view: let somebody make it who may read its tables."
        ) from error


def made_of(ctx: Context, record: TableRecord, branch: str | None, dataset: lance.LanceDataset) -> dict[str, str]:
    """Return the versions a view was made from, as table properties; none for one that was not refreshed lately.

    The answer is kept with the handle, which readers share until the table's version moves.
    """
    if ViewDefinition.of(dataset.schema.metadata) is None:
        return {}
    if (properties := _MADE_OF.get(dataset)) is None:
        ctx.storage.manifests.check_history(record.location, branch)
        with lance_errors(dataset):
            properties = _MADE_OF[dataset] = _read_made_of(dataset)
    return properties


def _read_made_of(dataset: lance.LanceDataset) -> dict[str, str]:
    for _, transaction in read_transactions(dataset, int(dataset.version) - _LOOKED_AT):
        made = Made.of(transaction.transaction_properties)
        if made is not None:
            sources = {name: one.version for name, one in made.sources.items()}
            return {"tiltyard.view.sources": msgspec.json.encode(sources).decode()}
    return {}
