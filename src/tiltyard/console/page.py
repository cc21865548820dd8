"""What a page gets of its request, and returns: a template with its values, or its own response; advice on errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from lance_namespace.errors import ErrorCode, InvalidInputError, LanceNamespaceError

from tiltyard.api.errors import error_response
from tiltyard.model.ids import Id, check_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.console.page_calls import PageCalls
    from tiltyard.console.sessions import BrowserSession
    from tiltyard.console.upload.receiving import ReceivedFile
    from tiltyard.context import Services
    from tiltyard.model.principals import Principal

NOT_FOUND = 404
MAX_PARAMETER = 100_000
"""Characters of one parameter of a page: a filter, a vector."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What failed, the status that says so, and what to do."""

    message: str
    status: int
    advice: str


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page, whose principal is known.

    - `path`: the id that the address names, behind the view: `("demo", "films")`.
    - `query`, `form`: the parameters of the address, and of the form that was sent (without its CSRF token); the last
      one counts where a name came twice, `all_of` has all.
    - `is_fragment`: htmx asks for a part of a page.
    - `range`: the header Range.
    - `origin`: scheme and host that the browser called, for addresses to copy.
    - `once`: what a redirect had this page show, once: another request for it has none of it.
    - `file`: the file behind the form, of a page that takes one and closes it.
    """

    calls: PageCalls
    services: Services
    principal: Principal
    session: BrowserSession | None
    path: Id
    query: Mapping[str, list[str]]
    form: Mapping[str, list[str]]
    is_fragment: bool
    range: str
    origin: str
    once: Mapping[str, Any] | None = None
    file: ReceivedFile | None = None

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter of the form or the address, without the spaces around it."""
        values = self.form.get(name) or self.query.get(name)
        return values[-1].strip() if values else default

    def all_of(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return [*self.form.get(name, ()), *self.query.get(name, ())]

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number. Raises InvalidInputError for another text, or one out of bounds."""
        text = self.text(name)
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            raise InvalidInputError(f"The parameter {name} is a whole number, not '{text[:40]}'.") from None
        if not least <= value <= most:
            raise InvalidInputError(f"The parameter {name} is {least} to {most}, not {value}.")
        return value

    def explain(self, error: LanceNamespaceError) -> Problem:
        """Return what a page says of an operation that failed, beside its form, which keeps what was entered."""
        status, body, _ = error_response(error, self.calls.ctx.request_id)
        status = 400 if status == NOT_FOUND else status  # the page is there: what was entered names nothing
        return Problem(str(error), status, advice_for(status, body.code, is_expected=True))

    def optional_integer(self, name: str) -> int | None:
        """Return a number that is not negative, None without it. Raises InvalidInputError for another text."""
        return self.integer(name, 0, 0, (1 << 63) - 1) if self.text(name) else None


@dataclass(frozen=True, slots=True)
class Page:
    """A template and its values; `status` is that of the response.

    A `fragment` has no layout around it.
    """

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    fragment: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another address of the console, where the browser goes on after a change (303): to load that again repeats none.

    The page there gets `once`, which is in no address, and which the browser keeps no longer.
    """

    address: str
    once: Mapping[str, Any] | None = None


def parse_path(raw_path: bytes, view: str) -> Id:
    """Return the id behind a view in an address, each name percent-encoded. Raises InvalidInputError."""
    rest = raw_path.removeprefix(f"/console/{view}".encode()).strip(b"/")
    try:
        names = [unquote_to_bytes(part).decode() for part in rest.split(b"/") if part]
    except UnicodeDecodeError as error:
        raise InvalidInputError("The address is not UTF-8: open the page from the tree.") from error
    return check_id(Id(names))


_BY_CODE = {
    ErrorCode.TABLE_NOT_FOUND: "It may have been renamed or dropped, or you may not see it: look in the tree.",
    ErrorCode.NAMESPACE_NOT_FOUND: "It may have been dropped, or you may not see it: look in the tree.",
    ErrorCode.TABLE_VERSION_NOT_FOUND: "It may have been removed by upkeep: choose one of the list of versions.",
    ErrorCode.TABLE_TAG_NOT_FOUND: "Choose one of the tags of the table.",
    ErrorCode.TABLE_COLUMN_NOT_FOUND: "Compare the names with the schema: case counts, and inner fields have dots.",
    ErrorCode.CONCURRENT_MODIFICATION: "Somebody else changed it at the same time: look at it again, then repeat.",
    ErrorCode.THROTTLING: "Wait a moment, then load the page again.",
    ErrorCode.PERMISSION_DENIED: "Ask an administrator for the privilege, or sign in as somebody else.",
}
_BY_STATUS = {
    400: "Change what you entered, and send it again.",
    404: "Go back, or begin at the catalog.",
    429: "Wait a moment, then load the page again.",
    503: "Wait a moment, then load the page again; if that does not help, look at the server's page.",
    504: "Ask for less: a narrower filter, fewer columns, or an index on what you filter by.",
}
UNEXPECTED = "The server's log has the details, under the id below."


def advice_for(status: int, code: int, *, is_expected: bool) -> str:
    """Return what a reader can do about an error of this status and code."""
    if not is_expected:
        return UNEXPECTED
    try:
        known = _BY_CODE.get(ErrorCode(code))
    except ValueError:
        known = None
    return known or _BY_STATUS.get(status, UNEXPECTED)
