"""The events of a job, as an Arrow stream: when it was queued, claimed, paused, resumed, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError

from tiltyard.access.databases import check_job_in_database
from tiltyard.access.needs import DESCRIBE_JOB_STATE
from tiltyard.model.operations import ArrowAnswer, PoolName, operation
from tiltyard.model.spec import ARROW_STREAM
from tiltyard.store.jobs.events import JobEvent
from tiltyard.tables.lance_sql.expressions import check_expression

if TYPE_CHECKING:
    from sqlglot import exp

    from tiltyard.context import Context
    from tiltyard.model.spec import models
    from tiltyard.store import TransactionRecord

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
MAX_FILTER_LENGTH = 4_096

_SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("job_status", pa.string(), nullable=False),
        pa.field("updated_by", pa.string()),
        pa.field("emitted_from", pa.string(), nullable=False),
        pa.field("emitted_by", pa.string(), nullable=False),
        pa.field("claim_entity", pa.string()),
        pa.field("attempt", pa.int64(), nullable=False),
        pa.field("rows_processed", pa.int64()),
        pa.field("message", pa.string()),
    ]
)


@operation(needs=DESCRIBE_JOB_STATE, query=True, pool=PoolName.CATALOG, changes=False)
def query_job_events(ctx: Context, request: models.QueryJobEventsRequest) -> ArrowAnswer:
    """Return the events of a job, oldest first, as an Arrow stream: those that a filter selects, `limit` at most.

    Raises TransactionNotFoundError, InvalidInputError (a limit, or a filter that is no comparison of its columns).
    """
    limit = DEFAULT_LIMIT if request.limit is None else request.limit
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInputError(f"limit is 1 to {MAX_LIMIT}, not {limit}.")
    expression = None if request.filter is None else parse_filter(request.filter)
    check_job_in_database(ctx, request.job_id)
    record = ctx.store.describe_transaction(request.job_id)
    table = _events_table(record, [_creation(record), *ctx.store.list_job_events(record.id)])
    if expression is not None:
        try:
            table = table.filter(expression)
        except (pa.ArrowException, TypeError) as error:
            raise InvalidInputError(f"The filter does not fit the columns of events: {error}") from error
    batches = table.slice(0, limit).combine_chunks().to_batches()
    return ArrowAnswer(_SCHEMA, batches, media=ARROW_STREAM)


def _creation(record: TransactionRecord) -> JobEvent:
    return JobEvent(record.created_at, "queued", "Queued", record.requested_by, 0, None, None)


def _events_table(record: TransactionRecord, events: list[JobEvent]) -> pa.Table:
    rows = [
        {
            "timestamp": event.happened_at,
            "state": event.event,
            "job_status": event.status,
            "updated_by": event.caused_by,
            "emitted_from": "worker" if event.caused_by is None else "server",
            "emitted_by": record.kind,
            "claim_entity": f"attempt {event.attempt}" if event.attempt else None,
            "attempt": event.attempt,
            "rows_processed": event.rows_processed,
            "message": event.message,
        }
        for event in events
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def parse_filter(text: str) -> pc.Expression:
    """Parse SQL of comparisons of columns with constants, joined by AND, OR and NOT. Raises InvalidInputError."""
    import sqlglot  # noqa: PLC0415  # takes a third of a second, and few requests need it

    if len(text) > MAX_FILTER_LENGTH:
        raise InvalidInputError(f"A filter of events has at most {MAX_FILTER_LENGTH} characters.")
    check_expression(text, "filter")
    try:
        parsed = sqlglot.parse_one(text)
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise InvalidInputError(f"The filter is not SQL: {str(error).splitlines()[0]}") from error
    return _predicate(parsed)


def _predicate(node: exp.Expr) -> pc.Expression:
    """Return the Arrow expression of a predicate. Raises InvalidInputError for anything else."""
    from sqlglot import exp  # noqa: PLC0415  # as above

    match node:
        case exp.Paren():
            return _predicate(node.this)
        case exp.And():
            return _predicate(node.left) & _predicate(node.right)
        case exp.Or():
            return _predicate(node.left) | _predicate(node.right)
        case exp.Not():
            return ~_predicate(node.this)
        case exp.Is() if isinstance(node.expression, exp.Null):
            return _column(node.this).is_null()
        case exp.In() if node.args.get("query") is None:
            return _column(node.this).isin([_constant(item) for item in node.expressions])
        case exp.Like():
            return pc.match_like(_column(node.this), str(_constant(node.expression)))
        case exp.Between():
            column = _column(node.this)
            return (column >= _constant(node.args["low"])) & (column <= _constant(node.args["high"]))
        case exp.EQ() | exp.NEQ() | exp.GT() | exp.GTE() | exp.LT() | exp.LTE():
            return _comparison(type(node).__name__, _column(node.left), _constant(node.right))
    raise InvalidInputError(
        f"The filter of events has '{node.sql()[:100]}': compare a column with constants, and join such terms by AND, "
        "OR and NOT."
    )


def _comparison(name: str, column: pc.Expression, value: Any) -> pc.Expression:
    return {
        "EQ": column.__eq__,
        "NEQ": column.__ne__,
        "GT": column.__gt__,
        "GTE": column.__ge__,
        "LT": column.__lt__,
        "LTE": column.__le__,
    }[name](value)


def _column(node: exp.Expr) -> pc.Expression:
    name = node.name if type(node).__name__ == "Column" else ""
    if name not in _SCHEMA.names:
        raise InvalidInputError(f"Events have no column '{node.sql()[:100]}': they have {', '.join(_SCHEMA.names)}.")
    return pc.field(name)


def _constant(node: exp.Expr) -> Any:
    """Return a text or a number. Raises InvalidInputError for anything else."""
    negative = type(node).__name__ == "Neg"
    literal = node.this if negative else node
    if type(literal).__name__ != "Literal" or (negative and literal.is_string):
        raise InvalidInputError(f"'{node.sql()[:100]}' is no constant: write a text in single quotes, or a number.")
    if literal.is_string:
        return literal.this
    try:
        value = int(literal.this) if literal.this.isdecimal() else float(literal.this)
    except ValueError as error:
        raise InvalidInputError(f"'{literal.this[:100]}' is no number.") from error
    return -value if negative else value
