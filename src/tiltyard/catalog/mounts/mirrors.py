"""Operations on mirrors: other catalogs in which tables of ours are registered, and kept in step by the workers.

On the wire they are publications. Only administrators do that. How entries are kept in step is in `mirror_sync`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.catalog.mounts.mirror_sync import try_sync
from tiltyard.catalog.mounts.mounts import checked_settings
from tiltyard.model.ids import Id, check_name, namespace_id
from tiltyard.model.operations import PoolName, operation
from tiltyard.model.spec import models
from tiltyard.mounts import open_catalog

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import MirrorRecord

SYNC_SECONDS = 20.0
"""After which SyncPublication and DropPublication respond; a worker goes on with what is left."""
WAIT_SECONDS = 0.1
MAX_PROBLEMS = 100
"""Tables with a problem that an entry of ListPublications names; it has the number of all."""


@operation(needs=ADMINISTRATORS, pool=PoolName.WRITES)
def create_publication(ctx: Context, request: models.CreatePublicationRequest) -> models.CreatePublicationResponse:
    """Publish tables to another catalog from now on, once it has answered; a worker writes the entries.

    Raises InvalidInputError (there is one of this name, an unknown kind, settings that are not valid, a secret that is
    not meant for mounts), NamespaceNotFoundError (ours), what the other catalog's first answer raises.
    """
    name = check_name(request.publication, "publication's name")
    if "," in name:
        raise InvalidInputError("A publication's name has no comma: it parts names in a table's property.")
    scope = None if request.namespace is None else namespace_id(request.namespace)
    scope_id = None if scope is None else _own_namespace_id(ctx, scope)
    settings = checked_settings(ctx, request.kind, request.settings or {})
    catalog = open_catalog(request.kind, settings)
    catalog.close()
    added = ctx.store.add_mirror(
        name,
        request.kind,
        settings,
        catalog.levels,
        namespace=scope,
        target=namespace_id(request.target),
        has_columns=bool(request.columns),
        namespace_id=scope_id,
    )
    if not added:
        raise InvalidInputError(f"There is a publication '{name}' already.")
    return models.CreatePublicationResponse(publication=_current_entry(ctx, find_mirror(ctx, name)))


@operation(needs=ADMINISTRATORS, changes=False)
def list_publications(ctx: Context, request: models.ListPublicationsRequest) -> models.ListPublicationsResponse:
    """List the publications by name: whether each is in step, why not, and which tables have a problem.

    Raises InvalidInputError.
    """
    page, token = ctx.paging.fetch_page(
        "publications", request.page_token, request.limit, ctx.store.list_mirrors, lambda record: record.name
    )
    fingerprint = ctx.store.tables_fingerprint() if page else ""
    entries = [_entry(ctx, record, fingerprint) for record in page]
    return models.ListPublicationsResponse(publications=entries, page_token=token)


@operation(needs=ADMINISTRATORS, pool=PoolName.WRITES)
def sync_publication(ctx: Context, request: models.SyncPublicationRequest) -> models.SyncPublicationResponse:
    """Sync a publication now, looking at each entry in the other catalog; a worker does what takes longer.

    The response says whether it is in step by now, or why the other catalog cannot be reached. Raises
    InvalidInputError (there is none of this name).
    """
    record = find_mirror(ctx, request.publication)
    _sync_now(ctx, record)
    return models.SyncPublicationResponse(publication=_current_entry(ctx, find_mirror(ctx, record.name)))


@operation(needs=ADMINISTRATORS, pool=PoolName.WRITES)
def drop_publication(ctx: Context, request: models.DropPublicationRequest) -> models.DropPublicationResponse:
    """Drop a publication; its entries in the other catalog stay, or are removed before with `remove_entries`.

    The response has the publication while it still removes them. Raises InvalidInputError (there is none of this name).
    """
    record = find_mirror(ctx, request.publication)
    if not request.remove_entries:
        ctx.store.delete_mirror(record.id)
        return models.DropPublicationResponse()
    ctx.store.start_removing_entries(record.id)
    _sync_now(ctx, record)
    left = ctx.store.find_mirror(record.name)
    if left is None or left.id != record.id:
        return models.DropPublicationResponse()
    return models.DropPublicationResponse(publication=_current_entry(ctx, left))


def find_mirror(ctx: Context, name: str) -> MirrorRecord:
    """Return the publication of a name. Raises InvalidInputError."""
    record = ctx.store.find_mirror(name)
    if record is None:
        raise InvalidInputError(f"There is no publication '{name}'.")
    return record


def _own_namespace_id(ctx: Context, scope: Id) -> int:
    if (found := ctx.services.mounts.find(scope)) is not None:
        raise InvalidInputError(f"{found[0].path} is a mount: what is in it belongs to another catalog.")
    return ctx.store.describe_namespace(scope).id


def _sync_now(ctx: Context, record: MirrorRecord) -> None:
    """Sync once; wait for a worker that does so at the moment."""
    deadline = time.monotonic() + SYNC_SECONDS
    while time.monotonic() < deadline:
        if try_sync(ctx, record.id, lambda: time.monotonic() >= deadline, verify=True):
            return
        current = ctx.store.find_mirror(record.name)
        if current is None or current.id != record.id:  # a worker has removed it
            return
        time.sleep(WAIT_SECONDS)


def _current_entry(ctx: Context, record: MirrorRecord) -> models.PublicationEntry:
    return _entry(ctx, record, ctx.store.tables_fingerprint())


def _entry(ctx: Context, record: MirrorRecord, fingerprint: str) -> models.PublicationEntry:
    is_in_step = record.error is None and record.fingerprint == fingerprint and not record.removing
    number_of_problems, problems = ctx.store.mirror_problems(record.id, MAX_PROBLEMS)
    since = record.synced_at or record.created_at
    return models.PublicationEntry(
        publication=record.name,
        kind=record.kind,
        settings=record.settings,
        namespace=None if record.namespace is None else list(record.namespace),
        target=list(record.target) or None,
        columns=record.has_columns,
        removing=record.removing,
        tables=ctx.store.count_published_entries(record.id),
        in_step=is_in_step,
        lag_millis=0 if is_in_step else max(0, ctx.clock() - since),
        synced_at_millis=record.synced_at,
        outage=record.error,
        number_of_problems=number_of_problems,
        problems=[models.PublicationProblem(id=list(each.path), problem=each.problem) for each in problems],
        created_at_millis=record.created_at,
    )
