"""Operations on transactions, the records of long work: describe and alter them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lance_namespace.errors import InvalidInputError, InvalidTableStateError

from tiltyard.access.needs import ALTER_TRANSACTION, DESCRIBE_TRANSACTION
from tiltyard.context import Context
from tiltyard.model.modes import SetPropertyMode, TransactionStatus, UnsetPropertyMode, parse_mode
from tiltyard.model.operations import always, operation
from tiltyard.model.spec import models

Status = TransactionStatus

_TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    Status.RUNNING: frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset({Status.QUEUED, Status.CANCELED}),
    Status.LOST: frozenset({Status.QUEUED, Status.CANCELED}),
    Status.CANCELED: frozenset(),
}
"""The allowed transitions; Failed → Queued retries the work, Failed → Canceled discards its checkpoints."""


def transaction_id(names: Sequence[str] | None) -> str:
    """Return the id of a transaction in a request. Raises InvalidInputError."""
    if not names or len(names) != 1:
        raise InvalidInputError("A transaction's id is one name: the transaction_id of the response that began it.")
    return names[0]


@operation(needs=DESCRIBE_TRANSACTION, inline=always, changes=False)
def describe_transaction(
    ctx: Context, request: models.DescribeTransactionRequest
) -> models.DescribeTransactionResponse:
    """Describe a transaction by its status and properties. Raises TransactionNotFoundError, InvalidInputError."""
    record = ctx.store.describe_transaction(transaction_id(request.id))
    properties = dict(record.properties) | ({"error": record.error} if record.error else {})
    properties |= {"paused": "true"} if record.is_paused else {}
    status = record.status_at(ctx.clock()).specified
    return models.DescribeTransactionResponse(status=status, properties={"kind": record.kind} | properties)


@operation(needs=ALTER_TRANSACTION, entries="actions")
def alter_transaction(ctx: Context, request: models.AlterTransactionRequest) -> models.AlterTransactionResponse:
    """Set a transaction's status or properties; all actions or none.

    Canceled stops the work. Raises TransactionNotFoundError, InvalidInputError (an action that is empty or does two
    things, a mode's Fail), InvalidTableStateError (a status that cannot follow the present one).
    """
    identifier = transaction_id(request.id)
    if not request.actions:
        raise InvalidInputError("There is no action: give at least one.")
    for action in request.actions:
        _check_single(action)

    def change(status: Status, properties: Mapping[str, str]) -> tuple[Status, dict[str, str]]:
        changed = dict(properties)
        for action in request.actions:
            if action.setStatusAction is not None:
                status = _next_status(status, action.setStatusAction)
            elif action.setPropertyAction is not None:
                _set_property(changed, action.setPropertyAction)
            elif action.unsetPropertyAction is not None:
                _unset_property(changed, action.unsetPropertyAction)
        return status, changed

    record = ctx.store.alter_transaction(identifier, change, altered_by=ctx.principal.name)
    return models.AlterTransactionResponse(status=record.status.specified, properties=dict(record.properties))


def _check_single(action: models.AlterTransactionAction) -> None:
    present = [name for name in action.__struct_fields__ if getattr(action, name) is not None]
    if len(present) != 1:
        raise InvalidInputError(f"Each action does exactly one thing: this one does {len(present)}.")


def _next_status(status: Status, action: models.AlterTransactionSetStatus) -> Status:
    if action.status is None:
        raise InvalidInputError("setStatusAction needs a status.")
    new_status = parse_mode(Status, action.status, status, "status")
    if new_status is not status and new_status not in _TRANSITIONS[status]:
        raise InvalidTableStateError(f"A transaction that is {status} cannot become {new_status}.")
    return new_status


def _set_property(properties: dict[str, str], action: models.AlterTransactionSetProperty) -> None:
    if action.key is None or action.value is None:
        raise InvalidInputError("setPropertyAction needs a key and a value.")
    mode = parse_mode(SetPropertyMode, action.mode, SetPropertyMode.OVERWRITE)
    if action.key in properties:
        if mode is SetPropertyMode.FAIL:
            raise InvalidInputError(f"The property '{action.key}' is set already.")
        if mode is SetPropertyMode.SKIP:
            return
    properties[action.key] = action.value


def _unset_property(properties: dict[str, str], action: models.AlterTransactionUnsetProperty) -> None:
    if action.key is None:
        raise InvalidInputError("unsetPropertyAction needs a key.")
    mode = parse_mode(UnsetPropertyMode, action.mode, UnsetPropertyMode.SKIP)
    if action.key not in properties and mode is UnsetPropertyMode.FAIL:
        raise InvalidInputError(f"The property '{action.key}' is not set.")
    properties.pop(action.key, None)
