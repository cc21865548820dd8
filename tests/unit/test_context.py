"""A context with something else keeps all that it had."""

from __future__ import annotations

from typing import Any, cast

from tiltyard.context import Context, OpenTable
from tiltyard.model.ids import Id


def _context() -> Context:
    """Return a context whose fields all have values of their own."""
    fields: dict[str, Any] = {name: object() for name in Context.__struct_fields__}
    return Context(**fields)


def _changed(before: Context, after: Context) -> set[str]:
    return {name for name in Context.__struct_fields__ if getattr(before, name) is not getattr(after, name)}


def test_with_resolved_changes_nothing_else() -> None:
    ctx = _context()
    assert _changed(ctx, ctx.with_resolved({})) == {"resolved"}


def test_with_open_table_changes_nothing_else() -> None:
    ctx = _context()
    table = OpenTable(cast("Any", None), cast("Any", None))
    assert _changed(ctx, ctx.with_open_table(Id(("t",)), table)) == {"resolved", "open_table", "check_deadline"}
