"""The SQL page: a query is written, run or explained, and shown as a grid; or all of its rows are downloaded.

It runs as by Arrow Flight, in a process of its own, which ends once its reader has left: to cancel a query the browser
closes its request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.api.errors import HttpError, error_response
from tiltyard.console.browser_checks import CONTENT_SECURITY_POLICY
from tiltyard.console.page import Page, PageRequest, advice_for
from tiltyard.console.sql_editor.completion import KEYWORDS, select_from
from tiltyard.console.sql_editor.results import (
    Result,
    explaining,
    open_rows,
    parse_statement_on_view,
    run_query,
    run_statement,
)
from tiltyard.console.table.downloads import FORMATS, stream
from tiltyard.console.table.heads import read_head
from tiltyard.sql.sessions import function_names

if TYPE_CHECKING:
    from starlette.responses import Response


ACTIONS = ("run", "explain")
_POLICY = {"content-security-policy": CONTENT_SECURITY_POLICY.replace("img-src 'self'", "img-src 'self' data:")}
"""Images of a result are in the page itself: they have no row to be fetched from. Nothing runs in one."""


def show(page: PageRequest) -> Page:
    """Show the editor: empty, or with a query of the table that the address names. Raises as `read_head`."""
    return _page(page, select_from(page.path, read_head(page)) if page.path else "")


def run(page: PageRequest) -> Page:
    """Run a query, or explain it; what fails is said beside the editor, which keeps the text."""
    action, text = page.text("action", ACTIONS[0]), _query(page)
    if action not in ACTIONS:
        raise InvalidInputError(f"A query is for {' or '.join(ACTIONS)}, not for '{action[:40]}'.")
    sent = text if action == "run" else explaining(text)
    try:
        return _page(page, text, result=_answer(page, text, sent))
    except (LanceNamespaceError, HttpError) as error:
        return _problem_page(page, text, error, sent)


def download(page: PageRequest) -> Response | Page:
    """Stream all rows of a query; one that fails before its first row is the page again, with the text."""
    text = _query(page)
    try:
        if parse_statement_on_view(page, text) is not None:
            raise InvalidInputError("A statement on a materialized view is run, not downloaded.")
        return stream(page, lambda: open_rows(page, text), "query")
    except (LanceNamespaceError, HttpError) as error:
        return _problem_page(page, text, error)


def _query(page: PageRequest) -> str:
    """Return the text of the editor as it is there: browsers send lines with a carriage return."""
    return (page.form.get("query") or [""])[-1].replace("\r\n", "\n")


def _answer(page: PageRequest, text: str, sent: str) -> Result:
    statement = parse_statement_on_view(page, text)
    if statement is None:
        return run_query(page, sent)
    if sent != text:
        raise InvalidInputError("A statement on a materialized view has no plan: explain the query of the view.")
    return run_statement(page, statement)


def _problem_page(
    page: PageRequest, text: str, error: LanceNamespaceError | HttpError, sent: str | None = None
) -> Page:
    """Return the page that says why a query failed, and where in its text; `sent` is what was run, if it is another."""
    page.services.outage_log.report(error)
    status, body, headers = error_response(error, page.calls.ctx.request_id)
    advice = "" if status in (400, 406) else advice_for(status, body.code, is_expected=True)
    message, place = find_place(text, sent or text, body.error or "")
    problem = {"message": message, "advice": advice, "place": place}
    further = {name.decode(): value.decode() for name, value in headers if name == b"retry-after"}
    return _page(page, text, status, further, problem=problem)


def _page(
    page: PageRequest,
    text: str,
    status: int = 200,
    headers: dict[str, str] | None = None,
    result: Result | None = None,
    problem: dict[str, Any] | None = None,
) -> Page:
    values: dict[str, Any] = {"result": result, "problem": problem}
    further = {**_POLICY, **(headers or {})}
    if page.is_fragment:
        return Page("sql_result.html", values, status, fragment=True, headers=further)
    values |= {
        "text": text,
        "formats": tuple(FORMATS),
        "words": {"keywords": KEYWORDS, "functions": function_names()},
        "max_length": page.services.settings.sql_max_length,
    }
    return Page("sql.html", values, status, headers=further)


_PLACE = re.compile(r",? at Line: (\d{1,6}), Column: (\d{1,6})")
_NAME = re.compile(
    r"No field named ([^\s,]+?)\.(?:\s|$)|There is no table '([^']+)'|Invalid function '(\w+)'"
    r"|(?:Table|Namespace) not found: (?:\S*\$)?([^\s$]+)"
)
_WORD = re.compile(r"\w+|\S")
MAX_BEFORE, MAX_BEHIND = 60, 40
"""Characters of the line that are shown before and behind the place."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a text: its line and column, from 1, its offset, from 0; the word there, and what is around that."""

    line: int
    column: int
    offset: int
    before: str
    word: str
    behind: str


def find_place(text: str, sent: str, message: str) -> tuple[str, Place | None]:
    """Return the message of an error without the place that it names in what was sent, and the place in the text.

    What was sent ends with the text. None where the message names no place, or one that the text has not.
    """
    found = _PLACE.search(message)
    if found is None:
        return message, _find_name(text, message)
    line, column = int(found[1]), int(found[2])
    lines = sent.split("\n")
    if not 1 <= line <= len(lines) or not 1 <= column <= len(lines[line - 1]) + 1:
        return message, None
    offset = sum(len(each) + 1 for each in lines[: line - 1]) + column - 1 - (len(sent) - len(text))
    if offset < 0:
        return message, None
    return _PLACE.sub("", message), _place(text, offset)


def _find_name(text: str, message: str) -> Place | None:
    """Return the place of the name that an error has, if the text has it once."""
    found = _NAME.search(message)
    name = found[found.lastindex or 0].lower() if found is not None else ""
    lower = text.lower()
    return _place(text, lower.index(name)) if name and lower.count(name) == 1 and len(lower) == len(text) else None


def _place(text: str, offset: int) -> Place:
    above = text[:offset].count("\n")
    at = offset - (text.rfind("\n", 0, offset) + 1)
    shown = text.split("\n")[above]
    before = ("…" if at > MAX_BEFORE else "") + shown[max(0, at - MAX_BEFORE) : at]
    behind = shown[at : at + MAX_BEHIND] + ("…" if len(shown) > at + MAX_BEHIND else "")
    word = _WORD.match(behind)
    end = word.end() if word is not None else 0
    return Place(above + 1, at + 1, offset, before, behind[:end], behind[end:])
