"""The audit: its records by filter, how many came when, and all of them as CSV or lines of JSON."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, LanceNamespaceError
from starlette.responses import StreamingResponse

from tiltyard.console.page import Page, PageRequest
from tiltyard.console.saved_files import CSV, JSON_LINES, csv_lines, csv_text, stream_file
from tiltyard.console.templates import moment
from tiltyard.model.modes import Outcome
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

RECORDS = 50
"""Records on one page."""
AT_ONCE = 1000
MAX_CHARTED = 10_000
"""Records that the chart counts, the newest."""
CHART_SECONDS = 1.5
MAX_EXPORTED = 100_000
BARS = 48
"""The most intervals that the chart has."""
NAMES = ("principal", "operation", "object", "outcome", "since", "until")
"""The parameters of a filter."""
OUTCOMES = tuple(outcome.value for outcome in Outcome)
SPANS_MS = tuple(
    seconds * 1000
    for seconds in (1, 5, 15, 60, 300, 900, 3600, 10_800, 21_600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
)
"""The intervals of a chart, of which the first is taken that needs no more than BARS."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are shown; times in ms since 1970, `texts` as they were entered."""

    texts: Mapping[str, str]
    since: int | None
    until: int | None

    @classmethod
    def of(cls, page: PageRequest) -> Filter:
        """Read the parameters of a page. Raises InvalidInputError."""
        texts = {name: page.text(name) for name in NAMES}
        return cls(texts, _millis(texts["since"]), _millis(texts["until"]))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        equal = {name: self.texts[name] or None for name in ("principal", "operation", "object", "outcome")}
        return equal | {"since_millis": self.since, "until_millis": self.until}


def _millis(text: str) -> int | None:
    """Return a moment that was entered, in UTC. Raises InvalidInputError."""
    if not text:
        return None
    try:
        entered = datetime.fromisoformat(text)
        return int((entered if entered.tzinfo else entered.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidInputError(f"A moment is entered as 2026-01-31T14:30, in UTC, not as '{text[:40]}'.") from None


def show(page: PageRequest) -> Page:
    """Show records, newest first, or their continuation. Raises PermissionDeniedError."""
    problem, status, records, cursor = "", 200, [], ""
    texts: Mapping[str, str] = {name: page.text(name) for name in NAMES}
    try:
        chosen = Filter.of(page)
        texts = chosen.texts
        listed = page.calls.call(
            "ListAuditRecords", limit=RECORDS, page_token=page.text("cursor") or None, **chosen.fields
        )
        records, cursor = listed.records, listed.page_token or ""
    except LanceNamespaceError as error:
        if error.code.name != "INVALID_INPUT":
            raise
        problem, status = str(error), 400
    values = {
        "records": records,
        "cursor": cursor,
        "chosen": texts,
        "is_filtered": any(texts.values()),
        "outcomes": OUTCOMES,
        "problem": problem,
        "level": page.services.settings.audit,
        "max_exported": MAX_EXPORTED,
    }
    return Page("audit_rows.html" if page.is_fragment else "audit.html", values, status, fragment=page.is_fragment)


def show_chart(page: PageRequest) -> Page:
    """Show how many of the records came when, by outcome. Raises PermissionDeniedError, InvalidInputError."""
    chosen = Filter.of(page)
    deadline = time.monotonic() + CHART_SECONDS
    moments: list[tuple[int, str]] = []
    is_cut = False
    for records in _pages(page, chosen):
        moments += [(record.at_millis, record.outcome) for record in records]
        if len(moments) >= MAX_CHARTED or time.monotonic() > deadline:
            is_cut = True
            break
    now = page.services.clock()
    since = moments[-1][0] if moments and (is_cut or chosen.since is None) else chosen.since
    chart = count_by_time(moments, since, chosen.until, now)
    return Page("audit_chart.html", {"chart": chart, "counted": len(moments), "is_cut": is_cut}, fragment=True)


def count_by_time(moments: Sequence[tuple[int, str]], since: int | None, until: int | None, now: int) -> dict[str, Any]:
    """Return how many records each interval has by outcome: `x` has its begin in seconds, each series a count."""
    if not moments:
        return {"x": [], "span": 0, "series": []}
    newest, oldest = max(millis for millis, _ in moments), min(millis for millis, _ in moments)
    first = oldest if since is None else min(since, oldest)
    last = max(newest, min(until - 1, now) if until is not None else now)
    span = next((span for span in SPANS_MS if last // span - first // span < BARS), SPANS_MS[-1])
    start = first // span
    number = min(last // span - start + 1, 10 * BARS)
    series = []
    for outcome in OUTCOMES:
        counts = [0] * number
        for millis, name in moments:
            if name == outcome and (index := millis // span - start) < number:
                counts[index] += 1
        if any(counts):
            series.append({"label": outcome, "values": counts})
    return {"x": [(start + index) * span // 1000 for index in range(number)], "span": span // 1000, "series": series}


def _pages(page: PageRequest, chosen: Filter) -> Iterator[Sequence[models.AuditEntry]]:
    for listed in page.calls.pages("ListAuditRecords", limit=AT_ONCE, **chosen.fields):
        yield listed.records


def export(page: PageRequest) -> StreamingResponse:
    """Stream the records of the filter, newest first, up to MAX_EXPORTED.

    Raises PermissionDeniedError, InvalidInputError for an unknown format or filter.
    """
    return stream_file(page, "audit", FORMATS, lambda encode: encode(_bounded(_pages(page, Filter.of(page)))))


def _bounded(pages: Iterator[Sequence[models.AuditEntry]]) -> Iterator[Sequence[models.AuditEntry]]:
    left = MAX_EXPORTED
    for records in pages:
        yield records[:left]
        left -= len(records)
        if left <= 0:
            return


def encode_csv(pages: Iterator[Sequence[models.AuditEntry]]) -> Iterator[bytes]:
    """Yield lines of CSV under a line of names; a text that a spreadsheet would run has an apostrophe before it."""
    names = ["at", *models.AuditEntry.__struct_fields__]
    head = csv_lines([names])
    for records in pages:
        yield head + csv_lines([[csv_text(value) for value in _values(record)] for record in records])
        head = b""


def _values(record: models.AuditEntry) -> Iterator[Any]:
    yield moment(record.at_millis)
    for name in record.__struct_fields__:
        value = getattr(record, name)
        yield json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def encode_json_lines(pages: Iterator[Sequence[models.AuditEntry]]) -> Iterator[bytes]:
    """Yield an object a record and line."""
    for records in pages:
        yield b"".join(msgspec.json.encode(record) + b"\n" for record in records)


FORMATS: Mapping[str, tuple[str, Callable[[Iterator[Sequence[models.AuditEntry]]], Iterator[bytes]]]] = {
    "csv": (CSV, encode_csv),
    "jsonl": (JSON_LINES, encode_json_lines),
}
