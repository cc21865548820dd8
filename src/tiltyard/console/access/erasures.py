"""Erasures: those that the reader has asked for or may make, and the signed report of one."""

from __future__ import annotations

from typing import Any

import msgspec

from tiltyard.console.access.forms import list_page, page_frame, required_text
from tiltyard.console.page import Page, PageRequest

VIEW = "access/erasures"
_TONES = {"complete": "good", "incomplete": "bad", "stopped": "bad", "running": "warn"}


def show(page: PageRequest) -> Page:
    """Show the erasures, newest first. Raises what listing them raises."""
    listed = list_page(page, "ListErasures")
    values = {
        **page_frame(page, VIEW),
        "erasures": listed.erasures,
        "cursor": listed.page_token or "",
        "tones": _TONES,
    }
    return Page("erasures.html", values)


def show_one(page: PageRequest) -> Page:
    """Show an erasure and its report. Raises TransactionNotFoundError, InvalidInputError (none is named)."""
    described = page.calls.call("DescribeErasure", erasure_id=required_text(page, "id", "the erasure's id"))
    report: dict[str, Any] = msgspec.json.decode(described.report) if described.report else {}
    values = {
        **page_frame(page, VIEW),
        "erasure": described.erasure,
        "report": report,
        "signature": described.signature,
        "is_valid": described.signature_is_valid,
        "tones": _TONES,
    }
    return Page("erasure.html", values)
