"""Bind a request to its model: path, query string, headers and body; read the headers of its context, too.

The query wins over the body where both name a field; the id of the path has to agree with the one in the body, in which
DuckDB's extension has the path's text as its one name. Unknown fields and parameters are refused for our own
operations, and ignored for those of the specification and of lancedb: `model.spec.strict_schemas` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.context import NO_ENTRIES, Freshness
from tiltyard.model.ids import DEFAULT_DELIMITER, Id, decode_segment, parse_id
from tiltyard.model.spec import Operation, Shape, models

NOT_FROM_QUERY = frozenset({"id", "identity", "context"})
NOT_FIELDS = NOT_FROM_QUERY | {"delimiter"}
CONTEXT_HEADER = b"x-lance-ctx-"
TABLE_LOCATION = b"x-lance-table-location"
TABLE_PROPERTIES = b"x-lance-table-properties"
MIN_VERSION = b"x-lancedb-min-version"
"""The version that the client wrote last."""
MIN_READ_VERSION = b"x-lancedb-min-read-version"
"""The version that the client has read."""
MIN_TIMESTAMP = b"x-lancedb-min-timestamp"
"""When the client wants all commits of before."""

_MAX_VERSION = 2**63 - 1
_MAX_TIMESTAMP_BYTES = 64
_EPOCH = datetime.fromtimestamp(0, UTC)

Segments = dict[str, bytes]
"""Raw path segments by name."""
QueryString = list[tuple[str, str]]
Headers = Mapping[bytes, bytes]
Rewrite = Callable[[bytes], Any]


class Binder:
    """Builds the request model of one operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.model: Any = getattr(models, operation.request) if operation.request else None
        self.takes_json = operation.request_shape in (Shape.OBJECT, Shape.EMPTY) and self.model is not None
        if self.model is None:
            return
        self._decoder = msgspec.json.Decoder(self.model)
        hints = get_type_hints(self.model, include_extras=True)
        self._readers = {name: _reader(name, kind) for name, kind in hints.items()}
        self._numbers = {name for name, kind in hints.items() if _is_number(kind)}
        self._required = sorted(info.name for info in msgspec.structs.fields(self.model) if info.required)

    def bind(
        self, segments: Segments, query: QueryString, headers: Headers, body: bytes, rewrite: Rewrite | None = None
    ) -> Any:
        """Return the request; `rewrite` turns a body of another dialect into this model, or its fields.

        Raises InvalidInputError for what does not fit the specification.
        """
        if self.model is None:
            return None
        named = self._from_query(query)
        request = self._rewritten(rewrite(body), named) if rewrite else self._from_body(body, named)
        for name, value in named.items():
            setattr(request, name, value)
        delimiter = _delimiter(query)
        for name, raw in segments.items():
            if name != "id":
                text = decode_segment(raw)
                setattr(request, name, self._readers[name](text) if name in self._numbers else text)
                continue
            joined = decode_segment(raw)
            path = parse_id(joined, delimiter)
            if request.id and tuple(request.id) != path and request.id != [joined]:
                other = str(Id(request.id))
                raise InvalidInputError(f"The path says '{path}' and the body says '{other}': make them agree.")
            request.id = list(path)
        if self.operation.request_shape is Shape.ARROW:
            self._from_headers(request, headers)
        return request

    def _from_body(self, body: bytes, named: Mapping[str, Any]) -> Any:
        if self.operation.request_shape is Shape.MAP:
            return self.model(metadata=decode_json(body, dict[str, str]))
        if not self.takes_json or not body or body == b"null":
            for name in self._required:
                if name not in named:
                    raise InvalidInputError(f"The request lacks '{name}'.")
            return self.model(**{name: named[name] for name in self._required})
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInputError(f"The body is not what {self.operation.name} takes: {error}") from error

    def _rewritten(self, fields: Any, named: Mapping[str, Any]) -> Any:
        """Return the model of a body in another dialect; required fields may be in the query string."""
        try:
            return msgspec.convert({**fields, **named} if isinstance(fields, dict) else fields, self.model)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"The body is not what {self.operation.name} takes: {error}") from error

    def _from_query(self, query: QueryString) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for name, text in query:
            if name in NOT_FROM_QUERY or name not in self._readers:
                if self.operation.is_own and name not in NOT_FIELDS:
                    raise InvalidInputError(f"{self.operation.name} has no parameter '{name}'.")
                continue
            value = self._readers[name](text)
            named[name] = [*named[name], *value] if isinstance(value, list) and name in named else value
        return named

    def _from_headers(self, request: Any, headers: Headers) -> None:
        """CreateTable's fields that rest-catalog-spec.md puts into headers."""
        if (location := headers.get(TABLE_LOCATION)) is not None and hasattr(request, "location"):
            request.location = location.decode("latin-1")
        if (properties := headers.get(TABLE_PROPERTIES)) is not None and hasattr(request, "properties"):
            request.properties = decode_json(properties, dict[str, str], "The header x-lance-table-properties")


def parse_query(raw: bytes) -> QueryString:
    """Return the names and values of a query string. Raises InvalidInputError if it is not UTF-8."""
    if not raw:
        return []
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInputError("The query string cannot be read: percent-encode it as UTF-8.") from error


def context_entries(headers: Headers) -> Mapping[str, str]:
    """Return the context entries of the headers `x-lance-ctx-<key>`."""
    if b"\n".join(headers).find(CONTEXT_HEADER) < 0:  # most have none: a quarter of the time of a loop
        return NO_ENTRIES
    prefix = len(CONTEXT_HEADER)
    return {
        name[prefix:].decode("latin-1"): headers[name].decode("latin-1")
        for name in headers
        if name.startswith(CONTEXT_HEADER)
    }


def read_freshness(headers: Headers) -> Freshness | None:
    """Return how fresh a response has to be for a client of lancedb, which reads its own writes and never an older
    state than before; None for any state. Raises InvalidInputError.
    """
    timestamp = headers.get(MIN_TIMESTAMP)
    if timestamp is None and MIN_VERSION not in headers and MIN_READ_VERSION not in headers:
        return None
    versions = [_version(name, headers[name]) for name in (MIN_VERSION, MIN_READ_VERSION) if name in headers]
    return Freshness(max(versions, default=0), 0 if timestamp is None else _milliseconds(timestamp))


def _version(name: bytes, text: bytes) -> int:
    if text.isdigit() and len(text) <= len(str(_MAX_VERSION)) and int(text) <= _MAX_VERSION:
        return int(text)
    raise InvalidInputError(f"The header {name.decode()} is the number of a version.")


def _milliseconds(text: bytes) -> int:
    """Parse a timestamp of RFC 3339, rounded up. Raises InvalidInputError."""
    try:
        parsed = datetime.fromisoformat(text[:_MAX_TIMESTAMP_BYTES].decode("ascii"))
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None or len(text) > _MAX_TIMESTAMP_BYTES:
        raise InvalidInputError(f"The header {MIN_TIMESTAMP.decode()} is a time in RFC 3339, with its offset from UTC.")
    return -((_EPOCH - parsed) // timedelta(milliseconds=1))


def decode_json(body: bytes, kind: Any, source: str = "The body") -> Any:
    """Decode JSON as one type. Raises InvalidInputError, which names the `source`."""
    try:
        return msgspec.json.decode(body or b"null", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{source} cannot be read: {error}") from error


def _delimiter(query: QueryString) -> str:
    for name, value in query:
        if name == "delimiter":
            return value
    return DEFAULT_DELIMITER


def _is_number(kind: Any) -> bool:
    """Return whether a field is an integer, within bounds or optional."""
    return kind is int or any(_is_number(member) for member in get_args(kind))


def _reader(name: str, kind: Any) -> Callable[[str], Any]:
    """Return what reads a value of the query string as its field's type: maps are JSON, lists repeat the name."""
    origins = {getattr(member, "__origin__", None) for member in get_args(kind) or (kind,)}
    # msgspec prepares a struct's fields once, and any other type at each call: that takes longer than the conversion.
    parameter: Any = msgspec.defstruct("Parameter", [("value", kind)])

    def read(text: str) -> Any:
        try:
            if dict in origins:
                return msgspec.json.decode(text, type=kind)
            return msgspec.convert({"value": [text] if list in origins else text}, parameter, strict=False).value
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            reason = str(error).partition(" - at `$.value")[0]
            raise InvalidInputError(f"The query parameter {name} cannot be '{text}': {reason}") from error

    return read
