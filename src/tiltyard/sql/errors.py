"""Translate errors of DataFusion to those of the namespace specification.

DataFusion raises `ValueError` or plain `Exception`; only the text tells a mistake in the query from a limit that it
has reached. What the tables of the query raise while it is planned comes through unchanged.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    UnsupportedOperationError,
)

from tiltyard.sql.statements.text_checks import NEGATED_MEMBERSHIP
from tiltyard.storage.errors import is_panic, one_sentence, translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.sql.tables import QueryTables

READ_ONLY = (
    "Queries only read: send one SELECT, WITH, VALUES, EXPLAIN or DESCRIBE, and no other statement but those on"
    " materialized views."
)

CORRELATED = (
    "This query has a subquery where it cannot be run: one that refers to the query around it has no ORDER BY and no"
    " LIMIT, also within LATERAL, and IN, ANY and EXISTS stand in WHERE. Write it as a join, with row_number() or max()"
    " for the first row of each."
)
_FAILED = "DataFusion failed on this query."
_TOO_LARGE = (
    "The query needs more memory, or more space to spill to, than one query may have (sql_memory_bytes, "
    "sql_spill_bytes): narrow it, or aggregate before it joins or sorts."
)
_RULES: tuple[tuple[re.Pattern[str], type[LanceNamespaceError], str], ...] = tuple(
    (re.compile(pattern), kind, message)
    for pattern, kind, message in (
        (
            r"Failed to coerce types (.+?) in (\w+) expression",
            InvalidInputError,
            r"The types \1 of \2 have nothing in common: cast one.",
        ),
        (
            r"Function 'ltrim' requires String, but received (\w+)",
            InvalidInputError,
            r"A key of JSON, and what ltrim takes, is a text, not \1: write positions as numbers, or json_get(…, key).",
        ),
        (
            r"Function '(\w+)' failed to match any signature",
            InvalidInputError,
            r"\1 does not take values of these types: cast them.",
        ),
        (
            r"Uncomparable values",
            UnsupportedOperationError,
            "min and max do not take lists of structs, nor other values that have no order: take a field of them.",
        ),
        (r"Internal error|panicked|bug in DataFusion|PyErr \{", InternalError, _FAILED),
        (r"outer_ref\(|OuterReferenceColumn", UnsupportedOperationError, CORRELATED),
        (
            r"does not support logical expression (?:InSubquery|Exists|ScalarSubquery|SetComp)",
            UnsupportedOperationError,
            CORRELATED,
        ),
        (r"null_aware anti join", UnsupportedOperationError, NEGATED_MEMBERSHIP),
        (
            r"(?:DDL|DML|Statement) not supported|Unsupported SQL statement|SET variant not implemented",
            UnsupportedOperationError,
            READ_ONLY,
        ),
        (
            r"SHOW \[VARIABLE\]|information_schema\.(?:parameters|routines|df_settings)",
            UnsupportedOperationError,
            "SHOW TABLES, and SHOW COLUMNS FROM a table, are all that there is to show.",
        ),
        (
            r"Resources exhausted|Not enough memory|[Mm]emory [Ll]imit|max_temp_directory_size",
            InvalidInputError,
            _TOO_LARGE,
        ),
        (
            r"(?:value of|Can't cast value) (\S+) (?:is out of range|to type) (U?Int\d+)",
            InvalidInputError,
            r"The value \1 is out of the range of \2: cast to DECIMAL(38, 0) or DOUBLE.",
        ),
    )
)
"""Errors by what DataFusion's text has, the first one that fits; `\\1` of a message is a part of that text."""

_PREFIXES = re.compile(
    r"^(?:Optimizer rule '\w+' failed\s+caused by\s+|(?:DataFusion error|FFI error|External error|Context"
    r"|Error during planning|SQL error|Schema error|Execution error|Arrow error|caused by|Invalid argument error"
    r"|Cast error|This feature is not implemented|Invalid user input|type_coercion|simplify_expressions): ?\n?)"
)
_PARSER = re.compile(r'^(?:Parser|Tokenizer)Error\("(.*)"\)', re.DOTALL)
"""How the parser's errors are printed, whose message is in quotes."""
_MISSING = re.compile(r"table '([^']*)' not found")
_OWN_CATALOG = re.compile(r"\btiltyard\.(?:current\.)?(?=[\w$\"])")
_MAX_LENGTH = 500


_FUNCTION = re.compile(r"""FunctionError\((?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\)""", re.DOTALL)
"""How an error of one of this server's own functions is printed, by the message's `repr`."""


@contextmanager
def sql_errors() -> Iterator[None]:
    """Translate what DataFusion raises inside a `with` block; errors of the specification pass."""
    try:
        yield
    except (GeneratorExit, StopIteration, KeyboardInterrupt, SystemExit):
        raise
    except LanceNamespaceError:
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        if type(error).__module__ == "asyncio.exceptions":
            raise
        raise translate_sql_error(error) from error


@contextmanager
def query_errors(tables: QueryTables) -> Iterator[None]:
    """Translate what DataFusion raises, or raise what has made it fail: what one of the query's tables has raised."""
    try:
        with sql_errors():
            yield
    except LanceNamespaceError as error:
        if tables.failure is not None:
            raise tables.failure from None
        name = None if error.__cause__ is None else missing_table(error.__cause__)
        if name is not None and (missing := tables.missing_error(name)) is not None:
            raise missing from None
        raise


def missing_table(error: BaseException) -> str | None:
    """Return the name that a query has for what is no table, as DataFusion says it; None for another error."""
    match = _MISSING.search(str(error))
    return match[1] if match else None


def translate_sql_error(error: BaseException) -> LanceNamespaceError:
    """Return the specification's error for one of DataFusion."""
    if is_panic(error):
        return InternalError(_FAILED)
    text = str(error)
    if match := _FUNCTION.search(text):
        return InvalidInputError(re.sub(r"\\(.)", r"\1", match[1] or match[2]))
    for pattern, kind, message in _RULES:
        if match := pattern.search(text):
            return kind(match.expand(message))
    if name := missing_table(error):
        return InvalidInputError(f"There is no table '{_OWN_CATALOG.sub('', name)}': name tables as schema.table.")
    if type(error) in (ValueError, Exception):
        kind = UnsupportedOperationError if "This feature is not implemented" in text else InvalidInputError
        return kind(_clean(text))
    translated = translate_error(error)
    if translated is None or isinstance(translated, PermissionDeniedError):
        return InternalError("The query failed.")
    return translated


def _clean(text: str) -> str:
    """Return a message of one line without the names of DataFusion's layers."""
    while (shorter := _PREFIXES.sub("", text)) != text:
        text = shorter
    text = _PARSER.sub(lambda printed: printed[1].replace('\\"', '"'), text)
    return one_sentence(_OWN_CATALOG.sub("", text), _MAX_LENGTH)
