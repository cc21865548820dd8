"""What a notebook shows of tables: HTML without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tiltyard.model.text.shown_text import shorten

MAX_CELL = 80
"""How many characters of a value a table shows."""


def render_fields(title: str, fields: Sequence[tuple[str, str]]) -> str:
    """Return the fields of a table's schema as HTML: names and types."""
    return f"<div><b>{escape(title)}</b>{render_table(('column', 'type'), fields)}</div>"


def render_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows as an HTML table; long values are cut."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return escape(shorten(text, MAX_CELL))
