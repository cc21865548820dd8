"""What to do about an error, in one sentence below it."""

from __future__ import annotations

from lance_namespace.errors import ErrorCode

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
