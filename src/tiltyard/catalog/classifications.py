"""Operations on classifications: set and unset them, list those of an object, find objects (docs/classification.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, PermissionDeniedError, TableNotFoundError
from msgspec import structs

from tiltyard.access.authorization import (
    are_objects_allowed,
    authorize_namespace,
    authorize_table,
    caller_rights,
    is_administrator,
)
from tiltyard.access.classifications import (
    classifications_of_namespace,
    classifications_of_table,
    derived_classifications,
)
from tiltyard.access.needs import ANY_CALLER
from tiltyard.model.classifications import ClassifiedKind, check_key, check_value
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.model.ids import Id, namespace_id, table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import Needs, operation
from tiltyard.model.paging import fetch_chosen
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import is_view
from tiltyard.store.access.classifications import COLUMN
from tiltyard.store.access.grants import NAMESPACE, TABLE
from tiltyard.tables.classification.followed_columns import follow_columns
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.schema.field_paths import find_field, path_names
from tiltyard.tables.versions.lineage_graph import can_use
from tiltyard.tables.views.plain_view_lineage import lineage_of_plain_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.access.classifications import DerivedClassification
    from tiltyard.context import Context
    from tiltyard.store import ClassificationRecord, ClassifiedColumn

Change = models.SetClassificationRequest | models.UnsetClassificationRequest


def _authorize(ctx: Context, request: Any, required: int, *, shows_no_rows: bool) -> Context:
    if _kind(request) is ClassifiedKind.NAMESPACE:
        path = namespace_id(request.id)
        return ctx.with_resolved({}, {path: authorize_namespace(ctx, path, required or Privilege.USE.value)})
    path = table_id(request.id)
    return ctx.with_resolved({path: authorize_table(ctx, path, required, enforces_policies=shows_no_rows)})


CLASSIFY = Needs(
    "`classify` on the namespace or table",
    lambda ctx, request: _authorize(ctx, request, Privilege.CLASSIFY.value, shows_no_rows=False),
)
LIST_CLASSIFICATIONS = Needs(
    "`use` on the namespace or table", lambda ctx, request: _authorize(ctx, request, 0, shows_no_rows=True)
)


@operation(needs=CLASSIFY)
def set_classification(ctx: Context, request: models.SetClassificationRequest) -> models.SetClassificationResponse:
    """Set a key of a namespace, a table or a column, in place of an earlier value; what lies below inherits it.

    Raises NamespaceNotFoundError, TableNotFoundError, TableColumnNotFoundError, PermissionDeniedError (a policy by this
    key binds the caller there), InvalidInputError (no such kind of object, a key or a value that cannot be one, too
    many, a column of a view).
    """
    key, value = check_key(request.key), check_value(request.value or "")
    target = _find_target(ctx, request)
    _check_not_bound(ctx, target, key)
    object_id = target.id
    if target.kind is ClassifiedKind.COLUMN:
        object_id = _keep_column(ctx, target, request)
    ctx.store.set_classification(target.kind, object_id, key, value, ctx.principal.name)
    ctx.rights_cache.refresh_next()
    return models.SetClassificationResponse(classifications=_list(ctx, target))


@operation(needs=CLASSIFY)
def unset_classification(
    ctx: Context, request: models.UnsetClassificationRequest
) -> models.UnsetClassificationResponse:
    """Unset a key of a namespace, a table or a column itself; what is inherited from above stays.

    Raises NamespaceNotFoundError, TableNotFoundError, PermissionDeniedError (a policy by this key binds the caller
    there), InvalidInputError (it is not set there).
    """
    key, target = check_key(request.key), _find_target(ctx, request)
    _check_not_bound(ctx, target, key)
    ids = [target.id]
    if target.kind is ClassifiedKind.COLUMN:
        path = quote_path(path_names(request.column or ""))
        ids = [column.id for column in ctx.store.classified_columns(target.id) if _is_named(column, path)]
    unset = [ctx.store.unset_classification(target.kind, object_id, key) for object_id in ids]
    if not any(unset):
        raise InvalidInputError(f"'{key}' is not set on {target}: list its classifications.")
    ctx.rights_cache.refresh_next()
    return models.UnsetClassificationResponse(classifications=_list(ctx, target))


@operation(needs=LIST_CLASSIFICATIONS, changes=False)
def list_classifications(
    ctx: Context, request: models.ListClassificationsRequest
) -> models.ListClassificationsResponse:
    """List what a namespace, or a table with its columns, is classified as, inherited values included.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    if _kind(request) is ClassifiedKind.COLUMN:
        raise InvalidInputError("List the classifications of the table: those of its columns are among them.")
    target = _find_target(ctx, request)
    entries, unknown = _list(ctx, target), list[list[str]]()
    if target.kind is ClassifiedKind.TABLE:
        is_plain = is_view(find_table(ctx, request.id).properties)
        of_view = partial(lineage_of_plain_view, ctx) if is_plain else None
        derived = derived_classifications(ctx.store, target.id, of_view)
        own = {((entry.column or "").casefold(), entry.key) for entry in entries if not entry.is_dropped}
        entries += [
            _derived_model(ctx, target, each)
            for each in derived.classifications
            if each.value is not None and (each.column.casefold(), each.key) not in own
        ]
        unknown = [path for number in sorted(derived.unknown_sources) if (path := _visible_path(ctx, number))]
    return models.ListClassificationsResponse(classifications=entries, unknown_sources=unknown or None)


@operation(needs=ANY_CALLER, changes=False)
def find_classified(ctx: Context, request: models.FindClassifiedRequest) -> models.FindClassifiedResponse:
    """Find the namespaces, tables and columns on which a key is set, with a value if one is named.

    Those that the caller can use alone. Raises InvalidInputError.
    """
    key = check_key(request.key)
    records, token = ctx.paging.fetch_page(
        f"classified {key} {request.value}",
        request.page_token,
        request.limit,
        lambda after, count: fetch_chosen(
            lambda after, count: ctx.store.find_classified(key, after, count),
            after or ("", 0),
            count,
            lambda record: (record.kind, record.object_id),
            lambda page: _find_visible(ctx, request, page),
        ),
        lambda found: (found.record.kind, found.record.object_id),
    )
    return models.FindClassifiedResponse(
        classifications=[_to_model(each.record, each.path, each.column) for each in records], page_token=token
    )


@dataclass(frozen=True, slots=True)
class _Target:
    """What a request names: a namespace, a table, or a column, whose `id` is that of its table."""

    kind: ClassifiedKind
    id: int
    path: Id
    column: str | None = None

    def __str__(self) -> str:
        return f"the column '{self.column}'" if self.column else f"the {self.kind} {self.path}"


@dataclass(frozen=True, slots=True)
class _Found:
    """An object that is classified, and that the caller can use."""

    record: ClassificationRecord
    path: Sequence[str]
    column: str | None


def _kind(request: Any) -> ClassifiedKind:
    return parse_mode(ClassifiedKind, request.object_kind, ClassifiedKind.TABLE, "kind of object")


def _find_target(ctx: Context, request: Change | models.ListClassificationsRequest) -> _Target:
    """Return what an authorized request names. Raises …NotFoundError, InvalidInputError."""
    kind = _kind(request)
    column = None if isinstance(request, models.ListClassificationsRequest) else request.column
    if (column is not None) != (kind is ClassifiedKind.COLUMN) and not isinstance(
        request, models.ListClassificationsRequest
    ):
        raise InvalidInputError("Name a 'column' where the kind of object is column, and only there.")
    if kind is ClassifiedKind.NAMESPACE:
        path = namespace_id(request.id)
        return _Target(kind, ctx.resolved_namespace_id(path) or ctx.find_namespace(path).id, path)
    return _Target(kind, find_table(ctx, request.id).id, table_id(request.id), column)


def _check_not_bound(ctx: Context, target: _Target, key: str) -> None:
    """Raise PermissionDeniedError if a policy by this key binds the caller on a namespace, which could so be lifted.

    Of a table, and so of its columns, authorization has refused whom any policy binds.
    """
    if target.kind is not ClassifiedKind.NAMESPACE or is_administrator(ctx):
        return
    is_bound = any(policy.key == key for policy in caller_rights(ctx).classification_policies)
    if is_bound and key in classifications_of_namespace(ctx.store, target.id):
        raise PermissionDeniedError(
            f"A policy by the classification '{key}' binds you on {target}: ask somebody whom it does not bind."
        )


def _keep_column(ctx: Context, target: _Target, request: models.SetClassificationRequest) -> int:
    """Return the id of a column's record. Raises TableColumnNotFoundError, InvalidInputError (a view's)."""
    if is_view(find_table(ctx, request.id).properties):
        raise InvalidInputError("A view's columns are classified as those that they are made from: classify these.")
    dataset = open_for_reading(ctx, request.id).dataset
    follow_columns(ctx, find_table(ctx, request.id), dataset)
    found, names = find_field(dataset, target.column or ""), path_names(target.column or "")
    path = quote_path(names)
    number = ctx.store.add_classified_column(target.id, found.id(), path)
    column = ctx.store.classified_columns_by_id([number])[number]
    if column.field_id != found.id():
        ctx.store.move_classified_columns([structs.replace(column, field_id=found.id())])
    return number


def _is_named(column: ClassifiedColumn, path: str) -> bool:
    """Return whether a column has a path, or had it when it was dropped."""
    if column.path is not None:
        return column.path.casefold() == path.casefold()
    return any(name.casefold() == path.casefold() for _, name in column.earlier)


def _list(ctx: Context, target: _Target) -> list[models.Classification]:
    if target.kind is ClassifiedKind.NAMESPACE:
        return list(_inherited(ctx, target, classifications_of_namespace(ctx.store, target.id).values()))
    found = classifications_of_table(ctx.store, target.id)
    table = _Target(ClassifiedKind.TABLE, target.id, target.path)
    entries = list(_inherited(ctx, table, found.inherited.values()))
    for column, by_key in sorted(found.columns.items(), key=lambda pair: _name_of(pair[0])):
        for record in by_key.values():
            entry = _to_model(record, target.path, _name_of(column))
            entry.is_dropped = column.path is None or None
            entries.append(entry)
    return entries


def _inherited(
    ctx: Context, target: _Target, records: Iterator[ClassificationRecord] | Any
) -> Iterator[models.Classification]:
    """Yield what an object is classified as, with where it inherits it from."""
    for record in records:
        entry = _to_model(record, target.path)
        entry.object_kind = target.kind
        if (record.kind, record.object_id) != (target.kind, target.id):
            path = ctx.store.object_path(record.kind, record.object_id)
            entry.inherited_from = models.ClassificationOrigin(object_kind=record.kind, id=list(path or ()))
        yield entry


def _derived_model(ctx: Context, target: _Target, each: DerivedClassification) -> models.Classification:
    """Return what a column inherits by lineage; where the caller may not know from where, the source has no name."""
    path = None if each.source_id is None else _visible_path(ctx, each.source_id)
    origin = models.ClassificationOrigin(
        object_kind=COLUMN,
        id=path,
        column=each.source_column if path is not None else None,
        is_unknown=each.is_unknown or None,
    )
    return models.Classification(
        object_kind=COLUMN,
        id=list(target.path),
        column=each.column,
        key=each.key,
        value=each.value or "",
        inherited_from=origin,
    )


def _visible_path(ctx: Context, table_id: int) -> list[str] | None:
    """Return the path of a table whose lineage the caller may see; None for any other."""
    try:
        record = ctx.store.table_by_id(table_id)
    except TableNotFoundError:
        return None
    path = ctx.store.object_path(TABLE, table_id)
    return list(path) if path is not None and can_use(ctx, record) else None


def _name_of(column: ClassifiedColumn) -> str:
    """Return the path of a column: of a dropped one, the last."""
    return column.path if column.path is not None else max(column.earlier, default=(0, ""))[1]


def _to_model(record: ClassificationRecord, path: Sequence[str], column: str | None = None) -> models.Classification:
    return models.Classification(
        object_kind=record.kind,
        id=list(path),
        column=column,
        key=record.key,
        value=record.value,
        set_by=record.set_by,
        set_at_millis=record.set_at,
    )


def _find_visible(
    ctx: Context, request: models.FindClassifiedRequest, page: Sequence[ClassificationRecord]
) -> Iterator[_Found]:
    """Yield the objects of a page with the value, if one is named, that the caller can use."""
    columns = ctx.store.classified_columns_by_id([each.object_id for each in page if each.kind == COLUMN])
    found = [
        each for record in page if request.value in (None, record.value) and (each := _granted(ctx, record, columns))
    ]
    objects = [(NAMESPACE if each.record.kind == NAMESPACE else TABLE, each.path) for each in found]
    for each, is_allowed in zip(found, are_objects_allowed(ctx, objects), strict=True):
        if is_allowed:
            yield each


def _granted(ctx: Context, record: ClassificationRecord, columns: dict[int, ClassifiedColumn]) -> _Found | None:
    """Return an object with a classification, if it is there and the caller has any privilege on it."""
    column = columns.get(record.object_id) if record.kind == COLUMN else None
    if record.kind == COLUMN and (column is None or column.path is None):
        return None
    kind = NAMESPACE if record.kind == NAMESPACE else TABLE
    object_id = record.object_id if column is None else column.table_id
    path = ctx.store.object_path(kind, object_id)
    if path is None or not _has_rights(ctx, kind, object_id):
        return None
    return _Found(record, path, None if column is None else column.path)


def _has_rights(ctx: Context, kind: str, object_id: int) -> bool:
    if is_administrator(ctx):
        return True
    rights = caller_rights(ctx)
    if kind == NAMESPACE:
        return bool(rights.on_namespace(object_id))
    namespace_id = ctx.store.namespace_of_table(object_id)
    return namespace_id is not None and bool(rights.on_table(object_id, namespace_id))
