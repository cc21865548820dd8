"""Read JSON texts: find the value at a path, and return it as JSON or as a text.

A text is parsed once for each step of a path, and no further than that: what is not asked for is only checked. Numbers
stay as they are written. Raises FunctionError for a text that is no JSON, and for a malformed path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tiltyard.sql.dialects.functions import FunctionError

MAX_STEPS = 64
"""Keys and positions of one path."""
MAX_DEPTH = 400
"""Lists and objects of a JSON text inside each other."""
_KEPT_READERS = 256

Step = str | int
"""A key of an object, or a position in a list, from its end where it is negative."""
Document = str | bytes | msgspec.Raw

_KEY = re.compile(r'\.(?:"((?:[^"\\]|\\.)+)"|([^.\["]+))|\[(?:#?(-\d{1,18})|(\d{1,18}))\]')
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)
"""Brackets, and texts, of which one that does not end goes to the end: so it takes time in proportion."""


_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_value = msgspec.json.Decoder(msgspec.Raw).decode
read_any = msgspec.json.Decoder().decode


@lru_cache(_KEPT_READERS)
def parse_path(text: str) -> tuple[Step, ...]:
    """Return the steps of a path as DuckDB writes it: `$.a.b[0]`, `/a/b/0`, and any other text is one key."""
    steps: tuple[Step, ...]
    if text[:1] == "/":
        steps = tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))
    elif text[:1] == "$":
        steps = tuple(_steps(text))
    else:
        steps = (text,) if text else ()
    if len(steps) > MAX_STEPS:
        raise FunctionError(f"A path of JSON has {len(steps)} steps: {MAX_STEPS} at most.")
    return steps


def _steps(text: str) -> Iterator[Step]:
    at = 1
    while at < len(text):
        match = _KEY.match(text, at)
        if match is None or match[2] == "*":
            what = "has a wildcard" if "*" in text[at:] else "is malformed"
            raise FunctionError(
                f'The path {text[:100]!r} {what} at {text[at : at + 20]!r}: write $.key, $."a key" and $[0], and'
                " json_array_elements(…) for all values of a list."
            )
        quoted, key, negative, position = match.groups()
        if quoted is not None:
            yield re.sub(r"\\(.)", r"\1", quoted)
        else:
            yield int(position or negative) if key is None else key
        at = match.end()


def find(document: Document, steps: Sequence[Step]) -> Document | None:
    """Return the value at a path; None where there is none."""
    if not steps:
        check(document)
    value: Document | None = document
    for step in steps:
        if value is None:
            return None
        value = _child(value, step)
    return value


def find_all(documents: Sequence[Document | None], steps: Sequence[Step]) -> Sequence[Document | None]:
    """Return the values at one path of many documents, as `find` does."""
    found = _read_all(documents, tuple(steps), msgspec.Raw) if steps else None
    if found is None:
        found = [None if document is None else find(document, steps) for document in documents]
    return found


def texts_at(documents: Sequence[Document | None], steps: Sequence[Step]) -> Sequence[str | None]:
    """Return the values at one path of many documents as texts."""
    found = _read_all(documents, tuple(steps), str | None) if steps else None
    if found is None:
        found = [None if value is None else to_text(value) for value in find_all(documents, steps)]
    return found


def _read_all(documents: Sequence[Document | None], steps: tuple[Step, ...], kind: Any) -> list[Any] | None:
    """Return the values of one kind at a path, in a fraction of the time of `find`; None if some are of another."""
    try:
        decode = _reader(steps, kind)
    except ValueError:  # msgspec takes no key with a quote, a backslash or a control character
        return None
    try:
        values = [None if document is None else decode(document) for document in documents]
    except (msgspec.MsgspecError, RecursionError):
        return None
    for step in steps:
        if isinstance(step, str):
            values = [None if value is None else value.value for value in values]
        else:
            values = [
                None if value is None or not -len(value) <= step < len(value) else value[step] for value in values
            ]
    return values


@lru_cache(_KEPT_READERS)
def _reader(steps: tuple[Step, ...], kind: Any) -> Callable[[Document], Any]:
    """Return what reads a document as far as a path goes, and passes over all else in it."""
    for step in reversed(steps):
        if isinstance(step, str):
            found = msgspec.defstruct("Object", [("value", kind, None)], rename={"value": step}, gc=False)
            kind = found | None
        else:
            kind = list[kind] | None
    return msgspec.json.Decoder(kind).decode


def _child(document: Document, step: Step) -> msgspec.Raw | None:
    try:
        if isinstance(step, str):
            found: dict[str, msgspec.Raw] = _read_object(document)
            return found.get(step)
        values = _read_list(document)
    except msgspec.ValidationError:  # of another kind, so far: what follows may be no JSON
        check(document)
        return None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_json(error) from error
    return values[step] if -len(values) <= step < len(values) else None


def check(document: Document) -> None:
    """Check that a text is JSON."""
    try:
        _read_value(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_json(error) from error


def check_depths(documents: Sequence[str | None]) -> None:
    """Check that no text nests too deep to be read by recursion. Takes time in proportion to the texts."""
    for document in documents:
        if document is not None and len(document) > MAX_DEPTH and _is_too_deep(document):
            raise FunctionError(f"A JSON text nests lists and objects deeper than {MAX_DEPTH}.")


def _is_too_deep(document: str) -> bool:
    if document.count("[") + document.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _BRACKETS.finditer(document):
        depth += (match[1] is not None) - (match[2] is not None)
        if depth > MAX_DEPTH:
            return True
    return False


def _not_json(error: Exception) -> FunctionError:
    reason = (
        "it nests too deep" if isinstance(error, RecursionError) else str(error).removeprefix("JSON is malformed: ")
    )
    return FunctionError(
        f"A text is no JSON ({reason[:100]}): leave such rows out by CASE WHEN json_valid(…) THEN … END, or make them"
        " NULL by TRY_CAST(… AS JSON)."
    )


def is_json(document: str) -> bool:
    """Return whether a text is JSON, and nests no deeper than it may."""
    if _is_too_deep(document):
        return False
    try:
        _read_value(document)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def to_json(value: Document) -> str:
    """Return a value as JSON without spaces; its numbers and texts are as they are written."""
    text = value if isinstance(value, str) else str(value, "utf-8")
    if text[:1] in "[{ \t\r\n":
        try:
            text = msgspec.json.format(text, indent=-1)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _not_json(error) from error
    return text


def to_text(value: Document) -> str | None:
    """Return a value as a text: a text as such, null as None, others as JSON."""
    written = value if isinstance(value, str) else str(value, "utf-8")
    first = written.lstrip()[:1] if written[:1] in " \t\r\n" else written[:1]
    if first == '"':
        text: str = read_any(written)
        return text
    return None if first == "n" else to_json(written)


def kind_of(value: Document) -> str:
    """Return what a value is, as PostgreSQL calls it."""
    first = (value if isinstance(value, str) else str(value, "utf-8")).lstrip()[:1]
    return _KINDS.get(first, "number")


_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def members(document: Document) -> dict[str, msgspec.Raw] | None:
    """Return the members of an object; None for another value."""
    found: dict[str, msgspec.Raw] | None = _read_as(_read_object, document)
    return found


def elements(document: Document) -> list[msgspec.Raw] | None:
    """Return the values of a list; None for another value."""
    found: list[msgspec.Raw] | None = _read_as(_read_list, document)
    return found


def _read_as(decode: Callable[[Document], Any], document: Document) -> Any:
    try:
        return decode(document)
    except msgspec.ValidationError:
        check(document)
        return None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_json(error) from error


def read(document: Document, decode: Callable[[Document], Any] = read_any) -> Any:
    """Return a JSON text as a value of Python."""
    try:
        return decode(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_json(error) from error
