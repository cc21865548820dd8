"""Test a table or a view by its contract: TestTable, which runs all checks against the rows that there are.

Rows are read once for the checks of single rows, by the evaluator that commits use, and once more for each check that
looks at all values of a column. The result is kept with the version.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, TableNotFoundError

from tiltyard.access.authorization import authorize_table
from tiltyard.access.needs import on_table
from tiltyard.contracts.checks import COMPARE
from tiltyard.contracts.contract import Contract, Level, describe_row
from tiltyard.contracts.row_checks import ROW_KINDS, failing_rows, first_failing
from tiltyard.model.branches import Branch
from tiltyard.model.ids import table_id
from tiltyard.model.operations import PoolName, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.refusals import RefusedError
from tiltyard.model.spec import models
from tiltyard.model.text.typed_ids import parse_typed_id
from tiltyard.store import TestRecord
from tiltyard.tables.contracts.enforcement import read_rows
from tiltyard.tables.keys.key_values import key_hashes
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.query.response_sizes import NO_LIMIT
from tiltyard.tables.query.routes.view import VIEW_VERSION, ExpandedView, find_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.contracts.contract import ContractCheck

MAX_TESTED_KEYS = 1 << 25
"""Values that a test of unique or foreign_key holds in memory, by their hashes of eight bytes."""

_OF_ROWS = (*ROW_KINDS, "freshness")


class TestedRows(Protocol):
    """The rows of a table or a view."""

    @property
    def schema(self) -> pa.Schema: ...
    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows with some columns, of which there is one."""


@dataclass(frozen=True, slots=True)
class _TableRows:
    dataset: lance.LanceDataset

    @property
    def schema(self) -> pa.Schema:
        return self.dataset.schema

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        return read_rows(self.dataset, columns)


@dataclass(frozen=True, slots=True)
class _ViewRows:
    """The rows that a view has for its reader."""

    ctx: Context
    names: list[str]
    schema: pa.Schema

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        chosen = models.QueryTableColumns(column_names=list(columns))
        request = models.QueryTableRequest(id=self.names, k=NO_LIMIT, vector=None, columns=chosen)
        for batch in ExpandedView(request).answer(self.ctx).batches:
            yield pa.Table.from_batches([batch])


@operation(needs=on_table(Privilege.READ), pool=PoolName.QUERIES)
def test_table(ctx: Context, request: models.TestTableRequest) -> models.TestTableResponse:
    """Test a table, or a view, by its contract: all checks, against all rows of a version; keep the result.

    Raises InvalidInputError (no contract, a column that is not there any more, too many different values), and what
    opening the table raises; for a foreign key also PermissionDeniedError of the other table.
    """
    record = ctx.store.table_by_id(find_table(ctx, request.id).id)
    if record.contract is None:
        raise InvalidInputError(f"The table '{record.name}' has no contract: tiltyard contract set declares one.")
    branch = Branch.parse(request.branch)
    version, rows = _open(ctx, request, branch)
    results = run_checks(ctx, Contract.from_json(record.contract).parsed(), rows)
    passed = all(result.passed or result.level == Level.WARN for result in results)
    encoded = msgspec.json.encode(results).decode()
    ctx.store.add_test(record.id, TestRecord(ctx.clock(), branch.key, version, ctx.principal.name, passed, encoded))
    return models.TestTableResponse(passed=passed, version=version, results=results)


def _open(ctx: Context, request: models.TestTableRequest, branch: Branch) -> tuple[int, TestedRows]:
    """Return the version to test, and its rows. Raises as `test_table` does."""
    if (view := find_view(ctx, request.id)) is None:
        opened = open_for_reading(ctx, request.id, branch=branch, version=request.version)
        return int(opened.dataset.version), _TableRows(opened.dataset)
    if request.branch or request.version is not None:
        raise InvalidInputError("A view has neither branches nor versions: leave them out.")
    return VIEW_VERSION, _ViewRows(ctx, list(request.id or ()), view.schema)


def run_checks(ctx: Context, checks: Sequence[ContractCheck], rows: TestedRows) -> list[models.TestedCheck]:
    """Return the result of each check. Raises InvalidInputError."""
    for each in checks:
        for column in each.check.columns:
            if column not in rows.schema.names:
                raise InvalidInputError(f"The check {each.text}: there is no column '{column}' any more.")
    try:
        counts = _count_failures(ctx, [each for each in checks if each.check.kind in (*_OF_ROWS, "rows")], rows)
        return [_result(each, _judge(ctx, each, rows, counts)) for each in checks]
    except RefusedError as error:
        raise InvalidInputError(str(error)) from error


def _result(each: ContractCheck, found: str) -> models.TestedCheck:
    return models.TestedCheck(check=each.text, level=each.level, passed=not found, found=found or None)


@dataclass(slots=True)
class _Counts:
    """How many rows there are, how many fail each check, and the first of these as text."""

    rows: int = 0
    failing: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)


def _count_failures(ctx: Context, checks: Sequence[ContractCheck], rows: TestedRows) -> _Counts:
    counts = _Counts()
    of_rows = [each for each in checks if each.check.kind in _OF_ROWS]
    columns = list(dict.fromkeys(name for each in of_rows for name in each.check.columns_of(rows.schema)))
    for batch in rows.read(columns or rows.schema.names[:1]) if checks else ():
        ctx.check_deadline()
        counts.rows += batch.num_rows
        for each, failing in zip(of_rows, failing_rows([each.check for each in of_rows], batch), strict=True):
            if not (count := pc.sum(failing).as_py()):
                continue
            counts.failing[each.text] += count
            if each.text not in counts.first:
                values = first_failing(batch, failing, each.check.columns_of(rows.schema))
                counts.first[each.text] = describe_row(values.items(), may_see=True)
    return counts


def _judge(ctx: Context, each: ContractCheck, rows: TestedRows, counts: _Counts) -> str:
    """Return what is wrong with the rows by one check; "" if they pass."""
    check = each.check
    if check.kind == "rows":
        comparison, number = check.arguments
        return "" if COMPARE[comparison](counts.rows, int(number)) else f"{counts.rows} rows"
    if check.kind == "freshness":
        return "no row is so new" if counts.failing[each.text] >= counts.rows else ""
    if check.kind == "unique":
        return _find_duplicates(ctx, check.arguments, rows)
    if check.kind == "foreign_key":
        return _find_missing(ctx, check.arguments[0], check.arguments[1], rows)
    count = counts.failing[each.text]
    return f"{count} of {counts.rows} rows fail, the first is {counts.first[each.text]}" if count else ""


def _find_duplicates(ctx: Context, columns: Sequence[str], rows: TestedRows) -> str:
    """Return how many keys come more than once, with one of them; "" for none. Keys with a null are left out.

    Rows are read again where two keys have one hash, which alone would be a guess.
    """
    hashes = np.sort(
        np.concatenate([np.empty(0, np.uint64), *(key_hashes(keys) for keys in _keys(ctx, columns, rows))])
    )
    suspects = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(suspects):
        return ""
    found = [keys.filter(pa.array(np.isin(key_hashes(keys), suspects))) for keys in _keys(ctx, columns, rows)]
    counts = pa.concat_tables(found).group_by(list(columns), use_threads=False).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts.column("count_all"), 1))
    if not twice.num_rows:
        return ""
    first = describe_row(twice.select(list(columns)).slice(0, 1).to_pylist()[0].items(), may_see=True)
    return f"{twice.num_rows} keys come more than once, as in {first}"


def _keys(ctx: Context, columns: Sequence[str], rows: TestedRows) -> Iterator[pa.Table]:
    """Yield the keys of all rows, without those that have a null. Raises InvalidInputError for too many."""
    count = 0
    for batch in rows.read(columns):
        ctx.check_deadline()
        keys = batch.select(list(columns)).drop_null()
        count += keys.num_rows
        if count > MAX_TESTED_KEYS:
            raise InvalidInputError(
                f"A test of unique or foreign_key reads up to {MAX_TESTED_KEYS} rows: these are more."
            )
        yield keys


def _find_missing(ctx: Context, column: str, reference: str, rows: TestedRows) -> str:
    """Return how many values are none of the other table's column, with the first; "" for none. A null refers to none.

    A table, or a column, that is not there any more has none of them.
    Raises RefusedError, PermissionDeniedError.
    """
    try:
        other, name = open_referenced(ctx, reference)
    except (NamespaceNotFoundError, TableNotFoundError):
        return f"there is no table of '{reference}'"
    if name not in other.schema.names:
        return f"there is no column '{reference}'"
    if rows.schema.field(column).type != other.schema.field(name).type:
        own, referenced = rows.schema.field(column).type, other.schema.field(name).type
        raise RefusedError(f"The check of foreign_key: '{column}' is {own}, and '{reference}' {referenced}.")
    known = _distinct(ctx, name, other)
    values = _distinct(ctx, column, rows)
    missing = values.filter(pc.invert(pc.is_in(values, value_set=known)))
    if not len(missing):
        return ""
    first = describe_row([(column, missing[0].as_py())], may_see=True)
    return f"{len(missing)} values are not in {reference}, as in {first}"


def _distinct(ctx: Context, column: str, rows: TestedRows) -> pa.Array:
    values = pa.array([], rows.schema.field(column).type)
    for batch in _keys(ctx, [column], rows):
        values = pc.unique(pa.chunked_array([values, *batch.column(0).chunks]))
    return values


def open_referenced(ctx: Context, reference: str) -> tuple[TestedRows, str]:
    """Return the rows of the table that a foreign key refers to, for the caller, and its column."""
    try:
        *path, column = parse_typed_id(reference)
    except ValueError as error:
        raise RefusedError(f"The check of foreign_key: {error}") from error
    if not path:
        raise RefusedError(f"The check of foreign_key: '{reference}' names no column of a table, as genres.name does.")
    names = list(path)
    other = msgspec.structs.replace(ctx, resolved=None, open_table=None)
    if not ctx.is_unchecked:
        authorize_table(other, table_id(names), int(Privilege.READ))
    if (view := find_view(other, names)) is not None:
        return _ViewRows(other, names, view.schema), column
    return _TableRows(open_for_reading(other, names).dataset), column
