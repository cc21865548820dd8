"""The columns that computed columns read: they keep their names and types, and are not dropped, under these."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.model.columns.computed_columns import ExpressionDeclaration, UdfDeclaration, read_declaration
from tiltyard.tables.lance_sql.lexer import TOKEN
from tiltyard.tables.schema.field_paths import path_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import lance

    from tiltyard.model.columns.computed_columns import Declaration

Path = tuple[str, ...]
"""The case-folded names of a field and the fields that it is in: Lance finds columns without case."""


def check_no_source(dataset: lance.LanceDataset, paths: Sequence[str], dropped: Sequence[str] = ()) -> None:
    """Check that no computed column reads the fields at these paths, besides the columns that are `dropped` with them.

    Raises InvalidInputError, which names the computed column.
    """
    changed = [_fold(path_names(path)) for path in paths]
    for field in dataset.schema:
        declaration = None if field.name in dropped else read_declaration(field.metadata)
        if declaration is None:
            continue
        for source in source_paths(declaration):
            for path, text in zip(changed, paths, strict=True):
                if source[: len(path)] == path[: len(source)]:
                    raise InvalidInputError(
                        f"The column '{field.name}' is computed from '{text}': drop it first, or in the same request."
                    )


def source_paths(declaration: Declaration) -> Iterator[Path]:
    """Yield the paths of the fields that a declaration reads; of an expression, all names that may be fields."""
    if isinstance(declaration, ExpressionDeclaration):
        yield from _names_in(declaration.expression)
        return
    for path in declaration.inputs if isinstance(declaration, UdfDeclaration) else declaration.columns:
        with suppress(InvalidInputError):  # what a client wrote into the metadata is no path of any field
            yield _fold(path_names(path))


def _names_in(expression: str) -> Iterator[Path]:
    """Yield the dotted names in an SQL expression, but for those of functions."""
    names: list[str] = []
    is_after_dot = False
    for token in TOKEN.finditer(expression):
        kind, text = token.lastgroup, token[0]
        if kind == "space":
            continue
        if kind in ("word", "quoted"):
            if names and not is_after_dot:
                yield tuple(names)
                names = []
            names.append((text[1:-1] if kind == "quoted" else text).casefold())
            is_after_dot = False
        elif text == "." and names:
            is_after_dot = True
        else:
            if names and kind != "open":
                yield tuple(names)
            names, is_after_dot = [], False
    if names:
        yield tuple(names)


def _fold(names: Path) -> Path:
    return tuple(name.casefold() for name in names)
