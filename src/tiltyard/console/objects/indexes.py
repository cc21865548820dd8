"""The page of a table's indexes: how far they are, a form that offers what fits a column, and dropping one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.calls.caller import schema_query
from tiltyard.console.access.forms import AT_ONCE, form_actions, required_text
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.table.heads import read_head
from tiltyard.console.templates import link
from tiltyard.model.columns.index_parameters import FLAGS, NUMBERS, PARAMETERS, STOP_WORDS, TEXTS
from tiltyard.model.columns.index_types import PURPOSES, IndexType, fitting_types, parameter_names
from tiltyard.model.columns.vector_columns import VectorColumn, quote_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


VIEW = "indexes"
MAX_COLUMNS = 1000
"""Columns, those within structs too, among which the form lets choose."""
PREFIX = "parameter."
"""What stands before a parameter's name in its field."""
_SPOKEN = {"l2": "l2 (Euclidean)", "cosine": "cosine", "dot": "dot product", "hamming": "hamming"}
HELPS = {name: text.partition(": ")[2] for name, text in {**NUMBERS, **FLAGS, **TEXTS}.items()} | {
    STOP_WORDS: "words to leave out, besides, with commas between."
}
"""What a parameter means, on a form of one type of index."""
_YES = "yes"


@dataclass(frozen=True, slots=True)
class IndexableColumn:
    """A column that an index can be built on: its `path`, its type, and the types of indexes, the advised one first."""

    path: str
    type: str
    fits: Sequence[IndexType]
    vector: VectorColumn | None

    @property
    def distances(self) -> dict[str, str]:
        """The distances that its vectors can have, the default first."""
        if self.vector is None:
            return {}
        if pa.types.is_uint8(self.vector.element):
            names: tuple[str, ...] = ("hamming",)
        else:
            names = ("cosine",) if self.vector.is_multivector else ("l2", "cosine", "dot")
        return {name: _SPOKEN[name] for name in names}


def show(page: PageRequest) -> Page:
    """Show the indexes of a table; the list alone for a page that follows a build. Raises what listing them raises."""
    if page.is_fragment:
        return Page("indexes_rows.html", _listed(page), fragment=True)
    return _show(page)


def _show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    head = read_head(page, "")
    has_data = not head.is_view and not head.table.is_only_declared
    may_create = has_data and page.calls.allows("CreateTableIndex", id=list(page.path), column="x", index_type="BTREE")
    columns = list(indexable_columns(page)) if may_create else []
    column = next((each for each in columns if each.path == page.text("column")), columns[0] if columns else None)
    kind = _chosen_type(page, column)
    values = head.values(page, VIEW) | {
        **(_listed(page) if has_data else {"indexes": [], "may_drop": False, "is_building": False}),
        "has_data": has_data,
        "choices": columns,
        "column": column,
        "kind": kind,
        "purposes": PURPOSES,
        "parameters": [name for name in PARAMETERS if kind is not None and name in parameter_names(kind)],
        "numbers": NUMBERS,
        "flags": FLAGS,
        "helps": HELPS,
        "prefix": PREFIX,
        "entered": {name: values[-1] for name, values in page.form.items()},
        "problem": problem,
    }
    return Page("indexes.html", values, status)


def _chosen_type(page: PageRequest, column: IndexableColumn | None) -> IndexType | None:
    """Return the type of the form: what was chosen, if that fits the column, else what is advised."""
    if column is None:
        return None
    return next((kind for kind in column.fits if kind == page.text("index_type")), column.fits[0])


def _listed(page: PageRequest) -> dict[str, Any]:
    listed = page.calls.call("ListTableIndices", id=list(page.path), limit=AT_ONCE).indexes
    progress = {index.index_name: _progress(page, index) for index in listed if _is_building(index)}
    return {
        "indexes": listed,
        "progress": progress,
        "is_building": bool(progress),
        "may_drop": page.calls.allows("DropTableIndex", id=list(page.path)),
    }


def _is_building(index: Any) -> bool:
    return (index.status or "").lower() == "building"


def _progress(page: PageRequest, index: Any) -> float | None:
    """Return how far a build is, from 0 to 1; None where that is not known."""
    described = page.calls.attempt("DescribeTransaction", id=[index.index_uuid])
    try:
        return float((described.properties or {})["progress"]) if described is not None else None
    except (KeyError, ValueError):
        return None


def indexable_columns(page: PageRequest) -> Iterator[IndexableColumn]:
    """Yield the columns of a table that can have an index. Raises what reading its schema raises."""
    with page.calls.rows(**schema_query(page.path)) as answer:
        schema: pa.Schema = answer.schema
    for number, (path, field) in enumerate(_fields(schema, ())):
        if number >= MAX_COLUMNS:
            return
        if fits := fitting_types(field):
            spelled = quote_path(path)
            yield IndexableColumn(spelled, str(field.type), fits, VectorColumn.from_type(spelled, field.type))


def _fields(fields: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    for field in fields:
        path = (*above, field.name)
        yield path, field
        if pa.types.is_struct(field.type):
            yield from _fields(field.type, path)


def _create(page: PageRequest) -> Redirect:
    fields: dict[str, Any] = {
        "column": required_text(page, "column", "the column"),
        "index_type": required_text(page, "index_type", "the type of the index"),
        "name": page.text("name") or None,
        "distance_type": page.text("distance_type") or None,
        "replace": page.text("replace") == _YES,
    }
    page.calls.call("CreateTableIndex", id=list(page.path), **fields, **_parameters(page))
    return Redirect(link(VIEW, page.path))


def _parameters(page: PageRequest) -> dict[str, Any]:
    """Return the parameters that were entered; those left empty have their default."""
    texts = {name: text for name in PARAMETERS if (text := page.text(f"{PREFIX}{name}"))}
    parameters: dict[str, Any] = {name: text == _YES if name in FLAGS else text for name, text in texts.items()}
    if STOP_WORDS in parameters:
        parameters[STOP_WORDS] = [word.strip() for word in texts[STOP_WORDS].split(",") if word.strip()]
    return parameters


def _drop(page: PageRequest) -> Redirect:
    page.calls.call("DropTableIndex", id=list(page.path), index_name=required_text(page, "index", "the index"))
    return Redirect(link(VIEW, page.path))


act = form_actions(_show, {"create": _create, "drop": _drop})
