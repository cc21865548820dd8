"""Keep up which columns of a table are classified, as its columns are renamed, cast, dropped and overwritten.

A column that was both renamed and cast in one commit has neither its id nor its path any more: so its new path is
recorded before the commit. What commits of clients do to columns is not seen here: a column
that has either of the two is masked then (`tiltyard.access.classifications.is_column`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tiltyard.access.classifications import field_identities
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.tables.schema.field_paths import fold_names, path_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.store import ClassifiedColumn, TableRecord
    from tiltyard.store.access.classifications import Identity

Names = tuple[str, ...]


def renames(alterations: Iterable[Mapping[str, Any]]) -> dict[Names, str]:
    """Return the new names of fields by the names on their paths, case-folded."""
    return {fold_names(path_names(each["path"])): each["name"] for each in alterations if "name" in each}


def note_renames(ctx: Context, table: TableRecord, renamed: Mapping[Names, str]) -> None:
    """Record the new paths of classified columns, before they are renamed: they are found by their ids until then."""
    columns = ctx.store.classified_columns(table.id)
    _record(ctx, columns, [_moved(column, column.field_id, _renamed(column, renamed)) for column in columns])


def follow_columns(
    ctx: Context,
    table: TableRecord,
    dataset: lance.LanceDataset,
    *,
    is_overwritten: bool = False,
) -> None:
    """Record what the classified columns of a table are in a version, its latest one.

    One that has neither its id nor its path there was dropped. In one that `is_overwritten` ids are new: paths count.
    """
    columns = ctx.store.classified_columns(table.id)
    if columns:
        fields = dict(field_identities(dataset))
        numbers = {path.casefold(): number for number, path in fields.items()}
        by_id = {} if is_overwritten else fields
        _record(ctx, columns, [_found(column, by_id, numbers, fields) for column in columns])


def _found(
    column: ClassifiedColumn, by_id: Mapping[int, str], numbers: Mapping[str, int], fields: Mapping[int, str]
) -> ClassifiedColumn:
    """Return what a column is in a version."""
    if column.path is None:
        return _restored(column, fields) or column
    number, path = numbers.get(column.path.casefold()), by_id.get(column.field_id)
    if path is not None and number not in (None, column.field_id):
        return column  # two fields may be it: both are masked
    if path is not None:
        return _moved(column, column.field_id, path)
    if number is not None:
        return _moved(column, number, fields[number])
    return _restored(column, fields) or _moved(column, column.field_id, None)


def _restored(column: ClassifiedColumn, fields: Mapping[int, str]) -> ClassifiedColumn | None:
    """Return a column as what it was in an earlier version, if that was restored; None otherwise."""
    for number, path in column.earlier:
        if fields.get(number, "").casefold() == path.casefold():
            earlier = {*column.earlier, *(() if column.path is None else ((column.field_id, column.path),))}
            return structs.replace(column, field_id=number, path=path, earlier=tuple(sorted(earlier)))
    return None


def _moved(column: ClassifiedColumn, field_id: int, path: str | None) -> ClassifiedColumn:
    """Return a column as another field; what it was stays among its earlier identities."""
    if column.path is None or (field_id, path) == (column.field_id, column.path):
        return column
    earlier: set[Identity] = {*column.earlier, (column.field_id, column.path)}
    return structs.replace(column, field_id=field_id, path=path, earlier=tuple(sorted(earlier)))


def _renamed(column: ClassifiedColumn, renamed: Mapping[Names, str]) -> str | None:
    """Return the path of a column after fields on it were renamed."""
    if column.path is None:
        return None
    names = path_names(column.path)
    folded = fold_names(names)
    return quote_path(tuple(renamed.get(folded[: level + 1], name) for level, name in enumerate(names)))


def _record(ctx: Context, before: Sequence[ClassifiedColumn], after: Sequence[ClassifiedColumn]) -> None:
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    if not moved:
        return
    kept = {column.path for column in before if column.id not in {each.id for each in moved}}
    paths = [column.path for column in moved if column.path is not None]
    clashing = {path for path in paths if path in kept or paths.count(path) > 1}
    ctx.store.move_classified_columns(column for column in moved if column.path not in clashing)
    ctx.rights_cache.refresh_next()
