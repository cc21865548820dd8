"""What Lance, pyarrow and the object store raise, as errors of the namespace specification.

    with lance_errors(dataset):
        dataset.delete(predicate)

Lance tells a user's mistake from a fault by its text alone: the exception's class depends on the call (a bad predicate
is a ValueError in a scan and an OSError in a delete). The texts here were seen from pylance 14 and are provoked for
real in the tests, so an upgrade that changes one is noticed. Nothing of the inside (paths of files, places in Rust
source, dumps of schemas) is left in a message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import obstore.exceptions as store_errors
import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    ErrorCode,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexNotFoundError,
    TableSchemaValidationError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.runtime.outage_log import StorageUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOCATION = re.compile(r",? (?:location: )?/(?:home/runner|rustc|root|usr|Users|github)/[^\s,:]*\.rs:\d+:\d+")
_DUMP = re.compile(r"(?:in schema)?:?\s*Schema \{.*", re.DOTALL)
_PREFIX = re.compile(
    r"^(?:Invalid user input|Invalid argument error|Schema error|External error|Query Execution error|Arrow error"
    r"|Error during planning|Execution error|LanceError\(\w+\)|Unsupported operation|Not supported|Encountered error): "
)
_STATEMENT = re.compile(r"SELECT 1 FROM t WHERE ")
_PATH = re.compile(r"(?:\w+://|/)?(?:[\w.%~=-]+/){2,}[\w.%~=-]+")
_LONGEST_MESSAGE = 500
_EACH_END = 2000
"""Characters of a text that are looked at in front and behind: some patterns take the square of its length, and Lance
repeats what a client has sent, however long that is."""


def no_column(name: str, columns: Iterable[str]) -> TableColumnNotFoundError:
    """The error of a column that is not there; it names those that are."""
    there = list(columns)
    listed = f" This table has: {', '.join(there)}." if there else ""
    return TableColumnNotFoundError(f"No column '{name}'.{listed}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A text of Lance and its error; without a message of its own, the cleaned text is the message.

    A missing column is the group `name` of the pattern.
    """

    pattern: re.Pattern[str]
    kind: type[LanceNamespaceError]
    message: str = ""

    def error(self, text: str, columns: Iterable[str]) -> LanceNamespaceError | None:
        """The error, if this rule is for such a text."""
        found = self.pattern.search(text)
        if not found:
            return None
        if self.kind is TableColumnNotFoundError:
            return no_column(found["name"].strip("\"'`"), columns)
        return self.kind(found.expand(self.message) if self.message else _sentence(text))


def _rule(pattern: str, kind: type[LanceNamespaceError], message: str = "") -> Rule:
    return Rule(re.compile(pattern, re.DOTALL), kind, message)


CONFLICT = re.compile(
    r"Retryable commit conflict|Commit conflict for version|Incompatible transaction|Too many concurrent writers"
    r"|Attempted \d+ (?:times|retries)|preempted by concurrent transaction"
)

_NO_DATA = "This table has no data yet: insert rows or create it first."
_REFUSED = "The storage refuses this: check the credentials the server has been given."
_SILENT = "The storage did not answer as it should: try again in a moment."

_RULES = (
    _rule(
        r"Commit result for version \d+ is unknown",
        ServiceUnavailableError,
        "Whether this was committed is not known: look at the table, or send the request again with its key.",
    ),
    _rule(
        CONFLICT.pattern,
        ConcurrentModificationError,
        "Another write changed this table first: read it again, then retry.",
    ),
    _rule(r"[Rr]ef not found error: tag (\S+) does not exist", TableTagNotFoundError, r"No tag '\1' on this table."),
    _rule(r"tag (\S+) already exists", TableTagAlreadyExistsError, r"The tag '\1' exists: update it, or rename yours."),
    _rule(r"[Bb]ranch (\S+) does not exist", TableBranchNotFoundError, r"No branch '\1' on this table."),
    _rule(
        r"Ref conflict error: [Bb]ranch (\S+) is referenced",
        InvalidInputError,
        r"Other branches or tags begin at the branch '\1': delete those first.",
    ),
    _rule(r"tree/([^,]+?)/_versions", TableBranchNotFoundError, r"No branch '\1' on this table."),
    _rule(r"[Bb]ranch (\S+) already exists", TableBranchAlreadyExistsError, r"The branch '\1' exists: rename yours."),
    # What creating a branch twice says, of all things.
    _rule(r"Clone operation should not enter build_manifest", TableBranchAlreadyExistsError, "This branch exists."),
    _rule(r"Ref is invalid", InvalidInputError),
    _rule(r"Version not found error: version (?:[^ :]+:)?(\d+)", TableVersionNotFoundError, r"No version \1 here."),
    _rule(r"_versions/\d+\.manifest was not found", TableVersionNotFoundError, "No such version of this table."),
    _rule(r"Dataset already exists", TableAlreadyExistsError, "There is a table at this location already."),
    _rule(r"Dataset at path .* was not found|Not found: .*_versions", InvalidTableStateError, _NO_DATA),
    _rule(r"ndex not found: name=([^,]+)", TableIndexNotFoundError, r"No index '\1' on this table."),
    _rule(r"Index \"?([^\"]+)\"? not found", TableIndexNotFoundError, r"No index '\1' on this table."),
    _rule(r"No field named (?P<name>.+?)\.(?: Did you mean| Valid fields|,|\s|$)", TableColumnNotFoundError),
    _rule(r"[Cc]olumn (?P<name>\S+|'[^']+'|\"[^\"]+\") (?:does not exist|not found)", TableColumnNotFoundError),
    _rule(r"FTS field path '(?P<name>[^']+)' does not exist", TableColumnNotFoundError),
    _rule(r"Embedding column (?P<name>.+) is not in the dataset", TableColumnNotFoundError),
    _rule(r"^'?(?P<name>.+) not found in schema'?$", TableColumnNotFoundError),
    _rule(r"Append with different schema", TableSchemaValidationError),
    _rule(r"contained null values even though|declared as non-nullable but contains null", TableSchemaValidationError),
    _rule(r"LanceError\(Schema\): Unsupported data type", TableSchemaValidationError),
    _rule(r"LanceError\(Schema\)|Duplicate field name|cannot contain `\.`", TableSchemaValidationError),
    _rule(r"LanceError\(Unsupported\)|^Not supported", UnsupportedOperationError),
    _rule(
        r"Regular expression did not compile: CompiledTooBig",
        InvalidInputError,
        "The regular expression is too large: repeat less in it.",
    ),
    _rule(
        r"LanceError\(IO\).*(?:AccessDenied|Forbidden|status(?: code)?:? 403)|Permission ?denied",
        PermissionDeniedError,
        _REFUSED,
    ),
    _rule(
        r"LanceError\(IO\).*Not found",
        InvalidTableStateError,
        "A file of this table is missing from the storage: restore it, or drop the table.",
    ),
    _rule(r"LanceError\(IO\)|Generic \w+ error|HTTP error|sending request", ServiceUnavailableError, _SILENT),
    _rule(r"file a bug report|LanceError\(Internal\)|panicked", InternalError, "Lance failed on this request."),
)


def _sentence(text: str) -> str:
    """A text of Lance without the inside: one line that closes with a full stop."""
    text = _LOCATION.sub("", text)
    text = _STATEMENT.sub("", _DUMP.sub("", text))
    text = _PATH.sub("…", text)
    while (shorter := _PREFIX.sub("", text)) != text:
        text = shorter
    text = " ".join(re.sub(r"(?<=: )Invalid user input: ", "", text).split())[:_LONGEST_MESSAGE].rstrip(" .:,")
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"


def is_conflict(error: BaseException) -> bool:
    """Whether a commit lost against another one: reading again and retrying can help."""
    return isinstance(error, ConcurrentModificationError) or CONFLICT.search(str(error)) is not None


def may_have_committed(error: BaseException) -> bool:
    """Whether a commit that raised this may have come to be after all: then its files must stay where they are."""
    known = translated(error)
    return known is None or known.code in (ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.INTERNAL)


def translated(error: BaseException, columns: Iterable[str] = ()) -> LanceNamespaceError | None:
    """The namespace's error for one of Lance, pyarrow or the object store; None for what nobody foresaw."""
    if isinstance(error, LanceNamespaceError):
        return error
    if type(error).__name__ == "PanicException":
        return InternalError("Lance failed on this request.")
    if isinstance(error, store_errors.BaseError | FileNotFoundError | PermissionError | TimeoutError | ConnectionError):
        return _of_storage(error)
    text = _LOCATION.sub("", _message(error))
    found = (rule.error(text, columns) for rule in _RULES)
    return next((known for known in found if known), None) or _of_kind(error, text)


def _of_kind(error: BaseException, text: str) -> LanceNamespaceError | None:
    """An error by its class, where its text says nothing known: Lance checks arguments with these."""
    if isinstance(error, NotImplementedError | pa.ArrowNotImplementedError):
        return UnsupportedOperationError(_sentence(text))
    if isinstance(error, ValueError | pa.ArrowException) or text.startswith(
        ("Invalid user input", "LanceError(Arrow)")
    ):
        return InvalidInputError(_sentence(text))
    if isinstance(error, TypeError) and re.search(r"\b[Cc]olumn\b|\bmust be\b", text):
        return InvalidInputError(_sentence(text))
    return None


def _message(error: BaseException) -> str:
    """The text of an exception; pylance gives some of them a tuple, and KeyError quotes its own."""
    first = error.args[0] if len(error.args) == 1 else str(error)
    text = "".join(map(str, first)) if isinstance(first, tuple) else str(first)
    return text if len(text) <= 2 * _EACH_END else f"{text[:_EACH_END]} … {text[-_EACH_END:]}"


def _of_storage(error: BaseException) -> LanceNamespaceError:
    if isinstance(error, PermissionError | store_errors.PermissionDeniedError | store_errors.UnauthenticatedError):
        return PermissionDeniedError(_REFUSED)
    if isinstance(error, FileNotFoundError):
        return InvalidTableStateError("A file of this table is missing from the storage.")
    if isinstance(error, store_errors.InvalidPathError | store_errors.UnknownConfigurationKeyError):
        return InvalidInputError(_sentence(_message(error)))
    return ServiceUnavailableError(_SILENT)


class lance_errors:  # noqa: N801  # it is used like a function, and nothing else is made as often
    """Raises the namespace's errors for those of Lance inside a `with` block.

    `table` is whatever has a `schema` (a dataset) or a schema itself; its columns are named where one is missing. It
    may be a location as well: where a storage fails, the log names its root (`tiltyard.runtime.outage_log`).
    What is not foreseen passes as it is, for the api to log and to answer 500.
    """

    __slots__ = ("_table",)

    def __init__(self, table: Any = None) -> None:
        self._table = table

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End it; a panic of Rust is no Exception."""
        if error is None or isinstance(error, (GeneratorExit, KeyboardInterrupt, SystemExit)):
            return
        known = translated(error, _columns(self._table))
        if known is not None and known is not error:
            if type(known) is ServiceUnavailableError:
                known = StorageUnavailableError(str(known), _location(self._table))
            raise known from error


def _location(table: Any) -> str:
    return table if isinstance(table, str) else str(getattr(table, "uri", ""))


def _columns(table: Any) -> list[str]:
    schema = getattr(table, "schema", table)
    return list(schema.names) if isinstance(schema, pa.Schema) else []
