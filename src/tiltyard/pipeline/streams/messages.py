"""Messages of a topic as changes of a table: rows of JSON, null values that delete, Debezium's change events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tiltyard.pipeline.streams.debezium import find_converters

Fields = dict[str, msgspec.Raw]
NULL = b"null"
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of JSON that cannot be read: its syntax or types, bytes that are not UTF-8, too many brackets."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a topic: its key and value as bytes, None where it has none."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of one key: `line` is its new row as a line of JSON, or the key to delete where `is_delete`."""

    line: bytes
    is_delete: bool = False


class UnreadableMessageError(ValueError):
    """The message says no change; the text says why."""


Decoder = Callable[[Message, Sequence[str]], "KeyChange | None"]
"""Reads a message for a table with the key `on`; None for one without a change. Raises UnreadableMessageError."""


class _Event(msgspec.Struct):
    """An event of Debezium, as it is or within an envelope with its schema."""

    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()
    op: str | None = None
    before: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()


class _Key(msgspec.Struct):
    """A key of Kafka Connect: a mapping of columns, as it is or within an envelope with its schema."""

    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()


def decode_row(message: Message, on: Sequence[str]) -> KeyChange | None:
    """Read a JSON object; by key, a message without a value deletes the row of its key."""
    if message.value is None:
        return KeyChange(_decode_key(message, on), is_delete=True) if on else None
    _decode_fields(message.value, "The value")
    return KeyChange(_one_line(message.value))


def decode_debezium(message: Message, on: Sequence[str]) -> KeyChange | None:
    """Read a change event of Debezium: `c`, `r` and `u` are upserts of its row, `d` a delete."""
    if message.value is None:
        return None  # the tombstone behind a delete
    try:
        event = msgspec.json.decode(message.value, type=_Event)
        schema = bytes(event.schema)
        if event.op is None and _is_given(event.payload):
            event = msgspec.json.decode(event.payload, type=_Event)
    except _UNREADABLE as error:
        raise UnreadableMessageError(f"The value is no change event of Debezium: {error}") from error
    if event.op in ("c", "r", "u"):
        if not _is_given(event.after):
            raise UnreadableMessageError(f"The change event '{event.op}' has no row 'after' the change.")
        return KeyChange(_convert(event.after, schema, "after"))
    if event.op == "d":
        return KeyChange(_deleted_key(message, event, schema, on), is_delete=True)
    if event.op == "m":
        return None  # a message of the source's own, of no table
    kind = "A truncation of the source" if event.op == "t" else f"The operation {str(event.op)[:20]!r}"
    raise UnreadableMessageError(f"{kind} is not applied: change events are c, r, u and d.")


def _deleted_key(message: Message, event: _Event, schema: bytes, on: Sequence[str]) -> bytes:
    """Return the key of a delete: of the row before it, or where that lacks it, of the message's key."""
    if _is_given(event.before):
        row = _decode_fields(_convert(event.before, schema, "before"), "The row before the change")
        if all(name in row and _is_given(row[name]) for name in on):
            return _join({name: row[name] for name in on})
    return _decode_key(message, on)


def _decode_key(message: Message, on: Sequence[str]) -> bytes:
    """Return the columns of a message's key as a line. Raises UnreadableMessageError if it lacks one."""
    if message.key is None:
        raise UnreadableMessageError("A message that deletes has no key.")
    try:
        key = msgspec.json.decode(message.key, type=_Key)
        text = _convert(key.payload, bytes(key.schema), None) if _is_given(key.payload) else message.key
        fields = msgspec.json.decode(text, type=Fields)
    except _UNREADABLE:
        fields = _scalar_key(message.key, on)
    if missing := [name for name in on if name not in fields]:
        raise UnreadableMessageError(f"The message's key has no '{missing[0]}'.")
    return _join({name: fields[name] for name in on})


def _scalar_key(key: bytes, on: Sequence[str]) -> Fields:
    """Return a key that is a JSON value by itself, where the table's key is one column."""
    try:
        value = msgspec.json.decode(key, type=msgspec.Raw)
    except _UNREADABLE as error:
        raise UnreadableMessageError(f"The message's key is no JSON: {error}") from error
    if len(on) != 1:
        raise UnreadableMessageError("The message's key is one value, and the table's key has several columns.")
    return {on[0]: value}


def _convert(row: msgspec.Raw | bytes, schema: bytes, part: str | None) -> bytes:
    """Return a row as a line, with the values that its schema gives a meaning (dates, decimals) written out."""
    try:
        converters = find_converters(schema, part) if schema and schema != NULL else {}
    except _UNREADABLE as error:
        raise UnreadableMessageError(f"The event's schema is none of Kafka Connect: {error}") from error
    if not converters:
        line = _one_line(bytes(row))
        if not line.startswith(b"{"):
            raise UnreadableMessageError("The row is no JSON object.")
        return line
    fields = _decode_fields(bytes(row), "The row")
    for name, convert in converters.items():
        if name in fields and _is_given(fields[name]):
            try:
                fields[name] = msgspec.Raw(convert(bytes(fields[name])))
            except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
                raise UnreadableMessageError(f"Column '{name}' is not of its schema's type: {error}") from error
    return _join(fields)


def _decode_fields(text: bytes, what: str) -> Fields:
    try:
        return msgspec.json.decode(text, type=Fields)
    except _UNREADABLE as error:
        raise UnreadableMessageError(f"{what} is no JSON object: {error}") from error


def _is_given(value: msgspec.Raw) -> bool:
    return bytes(value) not in (b"", NULL)


def _join(fields: Fields) -> bytes:
    pairs = (msgspec.json.encode(name) + b":" + _one_line(bytes(value)) for name, value in fields.items())
    return b"{" + b",".join(pairs) + b"}"


def _one_line(text: bytes) -> bytes:
    """Return JSON without line breaks: within its texts there are none."""
    return text.replace(b"\n", b" ").replace(b"\r", b" ").strip()
