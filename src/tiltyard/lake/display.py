"""What a notebook shows of runs and tables: HTML without scripts, and a bar that moves while a run is waited for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from tiltyard.runtime.pool import run_in_background

if TYPE_CHECKING:
    import threading

    from tiltyard.lake.runs import Run

REFRESH_SECONDS = 0.5
MAX_CELL = 80
"""How many characters of a value a table shows."""
_HIDDEN = ("progress", "eta_seconds")


def render_run(run: Run) -> str:
    """Return a run as HTML: a bar while it runs, and a table of its figures."""
    figures, status = run.figures, run.status
    head = f"<b>{escape(run.name)}</b> {escape(status)}"
    if status in ("Queued", "Running"):
        share = figures.get("progress")
        value = "" if share is None else f' value="{float(share):.4f}"'
        left = f" {escape(figures['eta_seconds'])} s left" if "eta_seconds" in figures else ""
        head = f'{head} <progress max="1"{value}></progress>{left}'
    rows = [(name, text) for name, text in figures.items() if name not in _HIDDEN]
    return f"<div>{head}{render_table(('figure', 'value'), rows) if rows else ''}</div>"


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
    return escape(text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}…")


@contextmanager
def show_progress(run: Run) -> Iterator[None]:
    """Show a run's bar in the output of a notebook's cell while the block runs; elsewhere, do nothing."""
    display = _notebook_display()
    if display is None or run.has_ended:
        yield
        return
    handle = display(run, display_id=True)

    def refresh(done: threading.Event) -> None:
        while not done.wait(REFRESH_SECONDS):
            handle.update(run)
        handle.update(run)

    with run_in_background("bar", refresh):
        yield


def _notebook_display() -> Any:
    """Return IPython's `display` in the kernel of a notebook, else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found]  # noqa: PLC0415  # a notebook has it

    return display
