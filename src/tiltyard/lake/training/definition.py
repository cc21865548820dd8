"""What a training set was asked to be: its source, its splits, and how rows are chosen. Checked first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.lake.tables.arguments import Names, check_whole_number, list_names
from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.columns.primary_keys import is_key_type
from tiltyard.model.lineage import digest_code
from tiltyard.model.text.shown_text import shorten
from tiltyard.model.views.definitions import MAX_QUERY_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlglot import exp


MAX_SPLITS = 16
"""Splits of a set."""
MAX_SEED = 2**63 - 1
"""The greatest seed, of splits and of orders."""
MAX_WEIGHTS = 1000
"""Classes that `weights` names."""
_SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Definition:
    """The arguments of a set, checked. `table` is the id of its source, or `query` makes one.

    `weights` is a column, or the weights of classes.
    """

    table: str
    query: str | None
    filter: str | None
    columns: tuple[str, ...] | None
    splits: Mapping[str, float]
    by: tuple[str, ...]
    seed: int
    stratify: str | None
    weights: str | Mapping[str, float] | None

    def to_json(self) -> dict[str, Any]:
        """Return the arguments as the manifest has them."""
        return {
            "table": self.table,
            "query": self.query,
            "filter": self.filter,
            "columns": None if self.columns is None else list(self.columns),
            "splits": dict(self.splits),
            "by": list(self.by),
            "seed": self.seed,
            "stratify": self.stratify,
            "weights": dict(self.weights) if isinstance(self.weights, Mapping) else self.weights,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Definition:
        """Return the arguments that a manifest has."""
        columns = stored["columns"]
        values = {**stored, "columns": None if columns is None else tuple(columns), "by": tuple(stored["by"])}
        return cls(**values)

    @property
    def code(self) -> str:
        """The digest of the query, as lineage has it; "" without one."""
        return "" if self.query is None else digest_code(self.query)

    def check_columns(self, schema: pa.Schema, key: Iterable[str]) -> None:
        """Check the columns that the arguments name, and those of the primary key that takes the place of `by`.

        Raises TableColumnNotFoundError for one that the source lacks, InvalidInputError for one of a wrong type.
        """
        named = {"columns": self.columns or (), "by": self.by, "stratify": (self.stratify,) if self.stratify else ()}
        named["weights"] = (self.weights,) if isinstance(self.weights, str) else ()
        for argument, names in named.items():
            if missing := [name for name in names if name not in schema.names]:
                raise TableColumnNotFoundError(
                    f"{argument} names '{missing[0]}', and {self.table} has no such column: it has "
                    f"{', '.join(schema.names)}."
                )
        for argument, names in {"by": (*self.by, *key), "stratify": named["stratify"]}.items():
            for name in names:
                _check_hashed(argument, schema.field(name))
        for name in named["weights"]:
            kind = schema.field(name).type
            if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
                raise InvalidInputError(
                    f"weights is '{name}', a column of {kind}: it has to be one of numbers, 0 to 1."
                )

    def describe_difference(self, asked: Definition) -> str:
        """Return how the arguments of a set differ from those that are asked for; "" where they are the same."""
        own, others = self.to_json(), asked.to_json()
        names = ["query"] if self.query != asked.query else [name for name in own if own[name] != others[name]]
        return "; ".join(f"{name} is {_show(own[name])}, not {_show(others[name])}" for name in names)


def check_definition(
    *,
    table: str,
    query: str | None,
    filter: Any,  # noqa: A002  # Lance's own name
    columns: Names | None,
    splits: Any,
    by: Names | None,
    seed: int,
    stratify: Any,
    weights: Any,
) -> Definition:
    """Return the arguments of a set. Raises InvalidInputError for those that no set can have."""
    check_seed(seed, "seed")
    chosen = list_names(columns, "columns")
    if chosen is not None and (not chosen or len(set(chosen)) < len(chosen)):
        raise InvalidInputError("columns has to name at least one column, and each once.")
    keys = list_names(by, "by") or []
    if query is not None and not keys:
        raise InvalidInputError(
            "by is left out, and rows of a query have no identity of their own: name columns by which."
        )
    for name, value in {"filter": filter, "stratify": stratify}.items():
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise InvalidInputError(f"{name} is {value!r}: give a text, or leave it out.")
    return Definition(
        table, query, filter, None if chosen is None else tuple(chosen), _check_splits(splits), tuple(keys), seed,
        stratify, _check_weights(weights, stratify),
    )  # fmt: skip


def check_seed(seed: object, argument: str) -> None:
    """Raise InvalidInputError for what is no seed."""
    check_whole_number(seed, argument)
    if not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InvalidInputError(f"{argument} is {seed}: it is a whole number from 0 to {MAX_SEED}.")


def _check_splits(splits: Any) -> Mapping[str, float]:
    given: Any = {"train": 1.0} if splits is None else splits
    if not isinstance(given, Mapping) or not 0 < len(given) <= MAX_SPLITS:
        raise InvalidInputError(
            f"splits is a mapping of 1 to {MAX_SPLITS} names to fractions: {{'train': 0.9, 'val': 0.1}}."
        )
    for name, fraction in given.items():
        if not isinstance(name, str) or not _SPLIT_NAME.fullmatch(name):
            raise InvalidInputError(f"splits has the name {name!r}: it has to be a word of letters, digits, _ and -.")
        is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not is_number or not 0 < fraction <= 1:
            raise InvalidInputError(f"splits['{name}'] is {fraction!r}: it has to be a fraction above 0, up to 1.")
    total = sum(given.values())
    if total > 1 + _ROUNDING:
        raise InvalidInputError(
            f"splits sum to {total:g}: fractions of one whole sum to 1, or to less for a part of it."
        )
    return {name: float(fraction) for name, fraction in given.items()}


def _check_weights(weights: Any, stratify: str | None) -> str | Mapping[str, float] | None:
    if weights is None or isinstance(weights, str):
        return weights
    if not isinstance(weights, Mapping) or not 0 < len(weights) <= MAX_WEIGHTS:
        raise InvalidInputError(
            f"weights is a column, or a mapping of 1 to {MAX_WEIGHTS} classes to numbers from 0 to 1."
        )
    if stratify is None:
        raise InvalidInputError("weights are of classes, and stratify, which names their column, is left out.")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise InvalidInputError(f"weights[{name!r}] is {weight!r}: it is a share of the rows, from 0 to 1.")
    return {str(name): float(weight) for name, weight in weights.items()}


def _check_hashed(argument: str, field: pa.Field) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if not is_key_type(kind) or has_blobs([field]):
        raise InvalidInputError(
            f"{argument} names '{field.name}', a column of {field.type}: it has to be one of integers, text, bytes, "
            "dates, times, decimals or booleans."
        )


def _show(value: object) -> str:
    return shorten(repr(value), 200)


_OF_TABLES = frozenset({"table_version", "table_tag", "table_branch", "vector_search", "fts", "minhash_search"})
"""Functions of the server's SQL whose first argument names a table."""
_DEFAULT_NAMESPACE = "public"


def query_tables(query: Any) -> list[tuple[str, ...]]:
    """Return the ids of the tables that a query names. Raises InvalidInputError for what is not one SELECT."""
    import sqlglot  # noqa: PLC0415  # takes a third of a second, and queries alone need it
    from sqlglot import exp  # noqa: PLC0415  # the same
    from sqlglot.optimizer.scope import Scope, traverse_scope  # noqa: PLC0415  # the same

    if not isinstance(query, str) or not 0 < len(query.strip()) <= MAX_QUERY_LENGTH:
        raise InvalidInputError(f"query is one SELECT, of up to {MAX_QUERY_LENGTH} characters.")
    try:
        statements = sqlglot.parse(query, read="postgres")
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            raise InvalidInputError("query is one SELECT over tables of the catalog.")
        scopes = traverse_scope(statements[0])
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise InvalidInputError(f"query is not read as SQL: {str(error).splitlines()[0]}") from error
    found: dict[tuple[str, ...], None] = {}
    for scope in scopes:
        for table in scope.tables:
            if not isinstance(scope.sources.get(table.alias_or_name), Scope) and (names := _path(table)):
                found[names] = None
    return list(found)


def _path(table: exp.Table) -> tuple[str, ...]:
    """Return the id of a table, also of one that a function names; () for what is none."""
    from sqlglot import exp  # noqa: PLC0415  # as above

    named = table.this
    if isinstance(named, exp.Identifier):
        name = named.name if named.quoted else named.name.lower()
        namespaces = tuple(table.db.split("$")) if table.db and table.db != _DEFAULT_NAMESPACE else ()
        return (*namespaces, name)
    if isinstance(named, exp.Anonymous) and named.name.lower() in _OF_TABLES and named.expressions:
        first = named.expressions[0]
        return tuple(first.name.split("$")) if isinstance(first, exp.Literal) and first.is_string else ()
    return ()
