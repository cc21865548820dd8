"""Take over what the metadata of new fields classifies their columns as: `tiltyard.classification.pii` = `email`.

It counts once, for a column that the catalog does not know yet; from then on the catalog alone decides. It never takes
the place of what the column inherits: so it hides more, and nothing less, and whoever may add a column may do that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.access.classifications import classifications_of_table, derived_classifications, is_column
from tiltyard.model.classifications import check_key, check_value, field_classifications
from tiltyard.model.columns.lineage import ANY_COLUMN, sql_inputs
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.store.access.classifications import COLUMN

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

ClassifiedField = tuple[int, tuple[str, ...], Mapping[str, str]]
"""Lance's id of a field, the names on its path, and the keys and values of its metadata."""


def take_classifications(ctx: Context, table: TableRecord, dataset: lance.LanceDataset) -> None:
    """Take over what the metadata of a version's new fields says. Raises as `keep_classifications` does."""
    keep_classifications(ctx, table, list(_classified_fields(dataset.lance_schema.fields(), ())))


def classify_as_inputs(ctx: Context, table: TableRecord, dataset: lance.LanceDataset, texts: Mapping[str, str]) -> None:
    """Classify columns that SQL has just computed as the columns that it has read, which no lineage tells of later."""
    known = classifications_of_table(ctx.store, table.id).columns
    fields = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    for name, text in texts.items():
        read = {each.column.casefold() for each in sql_inputs(text, (other for other in fields if other != name))}
        keys = {
            record.key: record.value
            for column, by_key in known.items()
            if (column.path or "").partition(".")[0].strip("`").casefold() in read
            for record in by_key.values()
        }
        if keys:
            _classify(ctx, table, (fields[name], quote_path((name,))), keys)


def keep_inherited(ctx: Context, table: TableRecord, dataset: lance.LanceDataset, columns: Iterable[str]) -> None:
    """Classify columns as what they inherit by lineage, which names them as they are called until now.

    Raises InvalidInputError for a column that inherits several values of a key: it can have but one itself.
    """
    derived = derived_classifications(ctx.store, table.id).classifications
    if not derived:
        return
    own = {
        (column.path or "").casefold(): set(by_key)
        for column, by_key in classifications_of_table(ctx.store, table.id).columns.items()
    }
    fields = {field.name().casefold(): (field.id(), field.name()) for field in dataset.lance_schema.fields()}
    for column in columns:
        number, name = fields[column.casefold()]
        path, keys = quote_path((name,)), dict[str, str]()
        for each in derived:
            is_of = each.column == ANY_COLUMN or each.column.casefold() == column.casefold()
            if not is_of or each.value is None or each.key in own.get(path.casefold(), ()):
                continue
            if keys.setdefault(each.key, each.value) != each.value:
                raise InvalidInputError(
                    f"The column '{name}' inherits several values of '{each.key}' from what it was made of: "
                    "classify it first."
                )
        if keys:
            _classify(ctx, table, (number, path), keys)


def _classify(ctx: Context, table: TableRecord, identity: tuple[int, str], keys: Mapping[str, str]) -> None:
    column = ctx.store.add_classified_column(table.id, *identity)
    for key, value in keys.items():
        ctx.store.set_classification(COLUMN, column, key, value, ctx.principal.name)
    ctx.rights_cache.refresh_next()


def keep_classifications(ctx: Context, table: TableRecord, fields: Iterable[ClassifiedField]) -> None:
    """Classify the columns of a table that the catalog does not know yet, by the metadata of their fields.

    Raises InvalidInputError for a key or a value that cannot be one, and for too many of them.
    """
    checked = [
        (number, quote_path(names), {check_key(key): check_value(value) for key, value in keys.items()})
        for number, names, keys in fields
    ]
    if not checked:
        return
    known = ctx.store.classified_columns(table.id)
    inherited = classifications_of_table(ctx.store, table.id).inherited
    for number, path, keys in checked:
        kept = {key: value for key, value in keys.items() if key not in inherited}
        if not kept or any(is_column(column, (number, path)) for column in known):
            continue
        _classify(ctx, table, (number, path), kept)


def _classified_fields(fields: Iterable[Any], above: tuple[str, ...]) -> Iterator[ClassifiedField]:
    for field in fields:
        names = (*above, field.name())
        if keys := field_classifications(field.metadata):
            yield field.id(), names, keys
        yield from _classified_fields(field.children(), names)
