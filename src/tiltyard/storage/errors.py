"""Translate errors of Lance, pyarrow and the object store to those of the namespace specification.

    with lance_errors(dataset):
        dataset.delete(predicate)

In Lance only the text tells a user's mistake from a fault: the exception's class depends on the call (a bad predicate
is a ValueError in a scan and an OSError in a delete). The texts are those of pylance 14; the tests provoke them for
real, so an upgrade that changes one is noticed. Internals (paths of files, lines of Rust source, dumps of schemas) are
removed from messages.
"""

from __future__ import annotations

import errno
import re
import sys
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

from tiltyard.runtime.durability import BrokenFileError
from tiltyard.runtime.outage_log import StorageUnavailableError
from tiltyard.runtime.tracing import end_span, is_tracing, start_child

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
_FAILED_WRITES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""What the system says of a write, or an fsync, to a disk that is full or fails."""
_MAX_MESSAGE_LENGTH = 500
_MAX_END_LENGTH = 2000
"""Characters searched at both ends of a text: some patterns take quadratic time, and Lance quotes what a client has
sent, however long that is."""


class StorageThrottledError(ServiceUnavailableError):
    """A storage answers that it gets too many requests (S3: SlowDown): it is there, and the client may try again.

    It is 503 with Retry-After, below a mount too, as S3 itself says. It is not the specification's Throttling (429), by
    which this server limits its callers: what a write has done is as little known as where a storage does not answer.
    """


_THROTTLED = re.compile(r"SlowDown|TooManyRequests|RequestLimitExceeded|ServerBusy|status(?: code)?:? ?(?:429|503)")


def is_throttled(text: str) -> bool:
    """Return whether a text of Lance, or of the object store, is that of a storage which gets too many requests."""
    return _THROTTLED.search(text) is not None


def column_not_found(name: str, columns: Iterable[str]) -> TableColumnNotFoundError:
    """Build the error of a missing column; it lists the existing ones."""
    existing = list(columns)
    hint = f" This table has: {', '.join(existing)}." if existing else ""
    return TableColumnNotFoundError(f"No column '{name}'.{hint}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of Lance's texts, and the error for it; without a `message`, the cleaned text is the message.

    In patterns of missing columns, the group `name` matches the column.
    """

    pattern: re.Pattern[str]
    kind: type[LanceNamespaceError]
    message: str = ""

    def error(self, text: str, columns: Iterable[str]) -> LanceNamespaceError | None:
        """Build the error for a text; None if the pattern does not match."""
        match = self.pattern.search(text)
        if not match:
            return None
        if self.kind is TableColumnNotFoundError:
            return column_not_found(match["name"].strip("\"'`"), columns)
        return self.kind(match.expand(self.message) if self.message else _clean_message(text))


def _rule(pattern: str, kind: type[LanceNamespaceError], message: str = "") -> Rule:
    return Rule(re.compile(pattern, re.DOTALL), kind, message)


CONFLICT = re.compile(
    r"Retryable commit conflict|Commit conflict for version|Incompatible transaction|Too many concurrent writers"
    r"|Attempted \d+ (?:times|retries)|preempted by concurrent transaction"
)

_NO_DATA = "This table has no data yet: insert rows or create it first."
_REFUSED = "The storage refuses this: check the server's credentials for it."
_FULL = "The storage has no room for this: nothing was committed. Send it again when there is room."
THROTTLED = "The storage gets too many requests: try again in a moment."
_SILENT = "The storage did not respond as expected: try again in a moment."

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
    # Lance's text for creating a branch twice.
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
    _rule(rf"(?:LanceError\(IO\)|Generic \w+ error).*(?:{_THROTTLED.pattern})", StorageThrottledError, THROTTLED),
    _rule(r"Namespace error: Service unavailable", ServiceUnavailableError, _SILENT),
    _rule(r"LanceError\(IO\)|Generic \w+ error|HTTP error|sending request", ServiceUnavailableError, _SILENT),
    _rule(r"file a bug report|LanceError\(Internal\)|panicked", InternalError, "Lance failed on this request."),
)


def _clean_message(text: str) -> str:
    """Clean a text of Lance: remove internals, return one line that ends with a full stop."""
    text = _LOCATION.sub("", text)
    text = _STATEMENT.sub("", _DUMP.sub("", text))
    text = _PATH.sub("…", text)
    while (shorter := _PREFIX.sub("", text)) != text:
        text = shorter
    return one_sentence(re.sub(r"(?<=: )Invalid user input: ", "", text), _MAX_MESSAGE_LENGTH)


def one_sentence(text: str, most: int) -> str:
    """Return a text on one line, up to so many characters of it, as a sentence."""
    text = " ".join(text.split())[:most].rstrip(" .:,")
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust code, of Lance or DataFusion: it is no Exception to Python."""
    return type(error).__name__ == "PanicException"


def is_conflict(error: BaseException) -> bool:
    """Whether a commit conflicted with another one, so that reading again and retrying can help."""
    return isinstance(error, ConcurrentModificationError) or CONFLICT.search(str(error)) is not None


def may_have_committed(error: BaseException) -> bool:
    """Whether a commit that raised this may have succeeded after all: then its files must not be deleted."""
    translated = translate_error(error)
    if isinstance(translated, IncompleteFileError):
        return False
    return translated is None or translated.code in (ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.INTERNAL)


def translate_error(error: BaseException, columns: Iterable[str] = ()) -> LanceNamespaceError | None:
    """Translate an error of Lance, pyarrow or the object store to the namespace's; None for an unexpected one."""
    if isinstance(error, LanceNamespaceError):
        return error
    if isinstance(error, BrokenFileError):
        return IncompleteFileError()
    if is_panic(error):
        return InternalError("Lance failed on this request: the server's log has the details.")
    if isinstance(error, store_errors.BaseError | FileNotFoundError | PermissionError | TimeoutError | ConnectionError):
        return _translate_storage_error(error)
    if isinstance(error, OSError) and error.errno in _FAILED_WRITES:
        return ServiceUnavailableError(_SILENT)
    text = _LOCATION.sub("", _message(error))
    matches = (rule.error(text, columns) for rule in _RULES)
    return next((match for match in matches if match), None) or _translate_by_class(error, text)


def _translate_by_class(error: BaseException, text: str) -> LanceNamespaceError | None:
    """Translate an error by its class, where no rule matches its text: Lance raises these for invalid arguments."""
    if isinstance(error, NotImplementedError | pa.ArrowNotImplementedError):
        return UnsupportedOperationError(_clean_message(text))
    if isinstance(error, ValueError | pa.ArrowException) or text.startswith(
        ("Invalid user input", "LanceError(Arrow)")
    ):
        return InvalidInputError(_clean_message(text))
    if isinstance(error, TypeError) and re.search(r"\b[Cc]olumn\b|\bmust be\b", text):
        return InvalidInputError(_clean_message(text))
    return None


def _message(error: BaseException) -> str:
    """Return the text of an exception; pylance passes some of them a tuple, and KeyError quotes its text."""
    first = error.args[0] if len(error.args) == 1 else str(error)
    text = "".join(map(str, first)) if isinstance(first, tuple) else str(first)
    return text if len(text) <= 2 * _MAX_END_LENGTH else f"{text[:_MAX_END_LENGTH]} … {text[-_MAX_END_LENGTH:]}"


def _translate_storage_error(error: BaseException) -> LanceNamespaceError:
    if isinstance(error, PermissionError | store_errors.PermissionDeniedError | store_errors.UnauthenticatedError):
        return PermissionDeniedError(_REFUSED)
    if isinstance(error, FileNotFoundError):
        return InvalidTableStateError("A file of this table is missing from the storage.")
    if isinstance(error, store_errors.InvalidPathError | store_errors.UnknownConfigurationKeyError):
        return InvalidInputError(_clean_message(_message(error)))
    return StorageThrottledError(THROTTLED) if is_throttled(_message(error)) else ServiceUnavailableError(_SILENT)


class IncompleteFileError(StorageUnavailableError):
    """A file that was just written is not whole, as on a full disk: nothing is recorded that names it."""

    def __init__(self, location: str = "") -> None:
        super().__init__(_FULL, location)


class lance_errors:  # noqa: N801  # used like a function; a class, because `contextmanager` is slower and this is created most often
    """Translate errors of Lance inside a `with` block to the namespace's errors.

    `table` is an object with a `schema` (a dataset) or a schema itself; its columns are listed where one is missing. It
    may be a location as well: where a storage fails, the log names its root (`tiltyard.runtime.outage_log`). The block
    is a span of traces, too.
    Unexpected errors pass unchanged, for the api to log and to respond with 500.
    """

    __slots__ = ("_span", "_table")

    def __init__(self, table: Any = None) -> None:
        self._table = table
        self._span: Any = None

    def __enter__(self) -> None:
        """Start a span, named after the function that calls Lance, where requests are traced."""
        if is_tracing():
            caller = sys._getframe(1).f_code.co_name.lstrip("_")
            self._span = start_child(f"storage {caller}", {"tiltyard.location": _location(self._table)})

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Translate the block's error; a panic of Rust is no Exception."""
        if self._span is not None:
            end_span(self._span, {}, None if error is None else type(error).__name__)
        if error is None or isinstance(error, (GeneratorExit, KeyboardInterrupt, SystemExit)):
            return
        translated = refusal(self._table) or translate_error(error, _columns(self._table))
        if translated is not None and translated is not error:
            if type(translated) is ServiceUnavailableError:
                translated = StorageUnavailableError(str(translated), _location(self._table))
            elif isinstance(translated, IncompleteFileError):
                translated.location = _location(self._table)
            raise translated from error


def refusal(table: Any) -> LanceNamespaceError | None:
    """Return why the catalog refused a dataset's last commit, which Lance only calls unknown; None otherwise."""
    refusals = getattr(getattr(table, "_namespace_client", None), "refusals", None)
    return refusals[0] if refusals else None


def _location(table: Any) -> str:
    return table if isinstance(table, str) else str(getattr(table, "uri", ""))


def _columns(table: Any) -> list[str]:
    schema = getattr(table, "schema", table)
    return list(schema.names) if isinstance(schema, pa.Schema) else []
