"""Quotas with what is used of them, which administrators set and drop, and who has used what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.console.access.forms import AT_ONCE, form_actions, page_frame, required_text
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.saved_files import CSV, csv_lines, csv_text, stream_file
from tiltyard.console.templates import link
from tiltyard.model.ids import Id, parse_id
from tiltyard.model.quotas import Resource
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from starlette.responses import StreamingResponse

VIEW = "access/quotas"
EXPORT = "access/usage/export"
SPANS = (1, 7, 31, 92)
"""Days of usage that can be chosen."""
_TONES = {"ok": "good", "soft": "warn", "hard": "bad"}


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show quotas and usage, as far as the reader may see them. Raises InvalidInputError."""
    days = _days(page)
    usage = page.calls.call("ListUsage", days=days)
    listed = page.calls.call("ListQuotas").quotas
    names = ("owner_kind", "owner", "resource", "soft", "hard")
    values = {
        **page_frame(page, VIEW, problem),
        "quotas": sorted(listed, key=lambda each: (-_share(each), each.resource)),
        "share": _share,
        "tones": _TONES,
        "resources": [each.value for each in Resource],
        "bytes": Resource.BYTES.value,
        "days": usage.days[:AT_ONCE],
        "stored": sorted(usage.stored, key=lambda each: -each.bytes)[:AT_ONCE],
        "num_left_out": max(0, len(usage.days) - AT_ONCE) + max(0, len(usage.stored) - AT_ONCE),
        "spans": SPANS,
        "span": days,
        "entered": {name: page.text(name) if problem else "" for name in names},
    }
    return Page("quotas.html", values, status)


def _days(page: PageRequest) -> int:
    return page.integer("days", SPANS[0], SPANS[0], SPANS[-1])


def _share(quota: models.QuotaEntry) -> float:
    """Return how much of a quota is used, 1 being its hard limit, or the soft one where that is the only one."""
    limit = quota.soft if quota.hard is None else quota.hard
    return quota.used / limit if limit else 1.0


def _owner(page: PageRequest) -> dict[str, Any]:
    """Return the fields of a request that name whose quota it is: one without a name is the root."""
    resource = required_text(page, "resource", "what is limited")
    if page.text("owner_kind") == "principal":
        return {"principal": required_text(page, "owner", "the principal's name"), "resource": resource}
    return {"namespace": list(parse_id(name)) if (name := page.text("owner")) else [], "resource": resource}


def _limit(page: PageRequest, name: str) -> int | None:
    text = page.text(name).replace(" ", "").replace(",", "").replace("_", "")
    if not text:
        return None
    if not text.isdecimal():
        raise InvalidInputError(f"A limit is a whole number, not '{text[:40]}'.")
    return int(text)


def _set(page: PageRequest) -> Redirect:
    page.calls.call("SetQuota", **_owner(page), soft=_limit(page, "soft"), hard=_limit(page, "hard"))
    return Redirect(link(VIEW))


def _drop(page: PageRequest) -> Redirect:
    page.calls.call("DropQuota", **_owner(page))
    return Redirect(link(VIEW))


act = form_actions(show, {"set": _set, "drop": _drop})


def export(page: PageRequest) -> StreamingResponse:
    """Stream what was used on the chosen days, and what is stored. Raises InvalidInputError."""
    usage = page.calls.call("ListUsage", days=_days(page))
    return stream_file(page, "usage", {"csv": (CSV, _encode)}, lambda encode: encode(usage))


def _encode(usage: models.ListUsageResponse) -> Iterator[bytes]:
    """Yield lines of CSV under a line of names: each day's, by principal and namespace, then what is stored."""
    names = ("day", "principal", "namespace", "requests", "rows_written", "tables", "bytes")
    yield csv_lines([names])
    entries: list[models.UsageEntry | models.StoredUsageEntry] = [*usage.days, *usage.stored]
    for entry in entries:
        fields = {name: getattr(entry, name, None) for name in names}
        if entry.namespace is not None:
            fields["namespace"] = str(Id(entry.namespace))
        yield csv_lines([[csv_text(value) for value in fields.values()]])
