"""The page by which a table is changed as an entry of the catalog: its name, comments and properties; and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.console.access.forms import form_actions, required_text
from tiltyard.console.objects.create import COMMENT, read_properties
from tiltyard.console.objects.dropped import check_name
from tiltyard.console.objects.protections import allowed_kinds, show_protections
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.table.heads import read_head
from tiltyard.console.templates import link
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.model.ids import Id, check_id
from tiltyard.model.text.typed_ids import format_id, parse_typed_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.console.table.heads import TableHead

VIEW = "manage"
MAX_COLUMNS = 400
"""Columns whose comments the page shows."""
_OWN = "tiltyard."
"""What properties of the server begin with."""


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show what its reader may change of a table. Raises what describing it raises."""
    head, id_, allows = read_head(page, ""), list(page.path), page.calls.allows
    properties = dict(sorted((head.table.properties or {}).items()))
    is_plain = not head.is_view
    values = head.values(page, VIEW) | {
        "may_rename": allows("RenameTable", id=id_, new_table_name="x"),
        "may_set": is_plain and allows("UpdateTable", id=id_, updates=[], properties={}),
        "may_alter": is_plain and bool(head.columns) and allows("UpdateFieldMetadata", id=id_, updates=[]),
        "may_drop": allows(_drop_operation(head), id=id_),
        **show_protections(page, "table"),
        "protection_kinds": allowed_kinds(page),
        "comment": properties.pop(COMMENT, ""),
        "properties": {name: value for name, value in properties.items() if not name.startswith(_OWN)},
        "comments": [(column.name, column.metadata.get(COMMENT, "")) for column in head.columns[:MAX_COLUMNS]],
        "days": page.services.settings.retention_days,
        "problem": problem,
        "entered": _entered(page) if problem else {},
        "above": format_id(page.path[:-1]) if len(page.path) > 1 else "",
    }
    return Page("manage.html", values, status)


def _entered(page: PageRequest) -> dict[str, Any]:
    """Return what was entered into the form that was refused."""
    return {**{name: values[-1] for name, values in page.form.items()}, "column-comment": page.all_of("column-comment")}


def _drop_operation(head: TableHead) -> str:
    return {"view": "DropView", "materialized view": "DropMaterializedView"}.get(head.kind, "DropTable")


def _rename(page: PageRequest) -> Redirect:
    name = required_text(page, "name", "the new name")
    try:
        parent = list(check_id(Id(parse_typed_id(page.text("namespace")))))
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    moves = parent != list(page.path[:-1])
    fields = {"new_table_name": name, "new_namespace_id": parent if moves else None}
    page.calls.call("RenameTable", id=list(page.path), **fields)
    return Redirect(link(VIEW, [*parent, name]))


def _set_comment(page: PageRequest) -> Redirect:
    return _set(page, {COMMENT: page.text(COMMENT)})


def _set_properties(page: PageRequest) -> Redirect:
    properties = read_properties(page)
    if not properties:
        raise InvalidInputError("Enter at least one property, NAME=VALUE a line.")
    return _set(page, properties)


def _set(page: PageRequest, properties: Mapping[str, str]) -> Redirect:
    page.calls.call("UpdateTable", id=list(page.path), updates=[], properties=dict(properties))
    return Redirect(link(VIEW, page.path))


def _set_column_comments(page: PageRequest) -> Redirect:
    """Set the comments that differ, in one commit; an empty one is removed."""
    head = read_head(page, "")
    before = {column.name: column.metadata.get(COMMENT, "") for column in head.columns}
    entered = zip(page.all_of("column"), page.all_of("column-comment"), strict=False)
    changed = {name: text.strip() for name, text in entered if text.strip() != before.get(name, "")}
    if changed:
        updates = [{"path": quote_path((name,)), "metadata": {COMMENT: text or None}} for name, text in changed.items()]
        page.calls.call("UpdateFieldMetadata", id=list(page.path), updates=updates)
    return Redirect(link(VIEW, page.path))


def _drop(page: PageRequest) -> Redirect:
    check_name(page)
    page.calls.call(_drop_operation(read_head(page, "")), id=list(page.path))
    above = page.path[:-1]
    return Redirect(link("namespace" if above else "", above))


def _protect(page: PageRequest) -> Redirect:
    reason = page.text("reason").strip() or None
    page.calls.call("SetProtection", object_kind="table", id=list(page.path), kind=page.text("kind"), reason=reason)
    return Redirect(link(VIEW, page.path))


def _lift(page: PageRequest) -> Redirect:
    page.calls.call("LiftProtection", object_kind="table", id=list(page.path), kind=page.text("kind"))
    return Redirect(link(VIEW, page.path))


act = form_actions(
    show,
    {
        "protect": _protect,
        "lift": _lift,
        "rename": _rename,
        "comment": _set_comment,
        "properties": _set_properties,
        "columns": _set_column_comments,
        "drop": _drop,
    },
)
