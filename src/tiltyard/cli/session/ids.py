"""Ids as people type them: `library.books`; a name with a dot in it stands in double quotes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import click

_SEPARATORS = ".$"
"""A dot, or the delimiter of the specification, which the other commands take."""
_WIRE_DELIMITERS = "$/|~!"
MAX_SUGGESTIONS = 3


class TypedId(tuple[str, ...]):
    """An id that was typed for a command, its names in order; without any, it is the root."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_id(self)


def parse_typed_id(text: str) -> TypedId:
    """Parse `a.b`, `a$b` or `a."b.c"`. Raises ValueError with a sentence for text that is no id."""
    if text in ("", *_SEPARATORS):
        return TypedId()
    names, name, position, is_quoted = [], "", 0, False
    while position < len(text):
        character = text[position]
        if is_quoted and character == '"':
            if text[position + 1 : position + 2] == '"':
                name, position = name + '"', position + 1
            else:
                is_quoted = False
        elif is_quoted or character not in f'{_SEPARATORS}"':
            name += character
        elif character == '"':
            is_quoted = True
        else:
            names.append(name)
            name = ""
        position += 1
    if is_quoted:
        raise ValueError(f"{text}: a quote is opened and not closed.")
    names.append(name)
    if "" in names:
        raise ValueError(f"{text}: a name is empty; write namespace.table.")
    return TypedId(names)


def format_id(names: Sequence[str]) -> str:
    """Format an id so that `parse_typed_id` reads it; the root is a dot."""
    return ".".join(format_name(name) for name in names) or "."


def format_name(name: str) -> str:
    """Format one name of an id, quoted where it has to be."""
    if any(character in name for character in f'{_SEPARATORS}"'):
        doubled = name.replace('"', '""')
        return f'"{doubled}"'
    return name


def wire_delimiter(names: Sequence[str]) -> str:
    """Return a delimiter for requests that is in none of the names."""
    return next(each for each in _WIRE_DELIMITERS if not any(each in name for name in names))


def suggest(name: str, existing: Iterable[str]) -> list[str]:
    """Return the names that are nearest to one that does not exist; none where none is near."""
    lowered = {other.lower(): other for other in existing}
    close = difflib.get_close_matches(name.lower(), lowered, MAX_SUGGESTIONS, 0.6)
    return [lowered[match] for match in close]


class IdType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """The type of an argument that is an id; the shell completes it from the catalog."""

    name = "id"

    def __init__(self, *, namespaces: bool = False) -> None:
        """`namespaces`: it may be a namespace, or the root."""
        self.takes_namespaces = namespaces

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TypedId:
        """Parse the id. Raises click.BadParameter."""
        if isinstance(value, TypedId):
            return value
        try:
            names = parse_typed_id(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not names and not self.takes_namespaces:
            self.fail("name a table.", param, ctx)
        return names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the ids of the catalog that begin as this one does."""
        from tiltyard.cli.session.completion import complete_id

        return complete_id(ctx, incomplete)


TABLE = IdType()
TABLE_OR_NAMESPACE = IdType(namespaces=True)
