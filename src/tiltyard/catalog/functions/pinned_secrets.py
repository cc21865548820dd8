"""The secrets that a registered function names: which they are, by id, and whether its registrant may have them now.

A function names secrets by their paths. When it is registered, these become ids, and at each job its registrant needs
what it needed then: so a new value of the same secret reaches the function, a secret that was dropped and made anew
under the name does not, and nothing does once the registrant has lost `manage_secrets`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import PermissionDeniedError, TableNotFoundError

from tiltyard.access.authorization import authorize_namespace
from tiltyard.access.stored_definitions import Definer
from tiltyard.catalog.functions.secrets import read_secret_value, secret_not_found
from tiltyard.model.functions import Definition
from tiltyard.model.ids import Id, check_id
from tiltyard.model.principals import EVERYBODY, Principal
from tiltyard.model.privileges import Privilege
from tiltyard.store.access.grants import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context
    from tiltyard.model.functions import SecretBinding
    from tiltyard.store import FunctionRecord, SecretRecord

_REFUSAL = (
    "{name}, who registered this function, may not use the secrets that it names any more: let a principal register it "
    "again who may."
)


def find_secret_ids(ctx: Context, definition: Definition) -> dict[str, str]:
    """Return the ids of the secrets of a function, by their variables: the caller may manage them, as its code can read
    them.

    Raises TableNotFoundError (no such secret), NamespaceNotFoundError, PermissionDeniedError.
    """
    ids = {}
    for binding in definition.secret_bindings:
        path = _path_of(binding)
        if not ctx.principal.administrator:
            authorize_namespace(ctx, path.parent, Privilege.MANAGE_SECRETS.value)
        record = ctx.store.describe_secret(ctx.store.describe_namespace(path.parent).id, path.name)
        if record is None:
            raise secret_not_found(path)
        ids[binding.variable] = record.id
    return ids


def read_secrets(ctx: Context, record: FunctionRecord) -> dict[str, str]:
    """Decrypt the secrets that a function names, by their variables, if its registrant may still have them.

    Raises PermissionDeniedError, TableNotFoundError (a secret was dropped, whatever has its name now),
    InvalidTableStateError (no key of the server decrypts it).
    """
    return {variable: read_secret_value(ctx, path, secret) for variable, path, secret in _authorized(ctx, record)}


def may_have_secrets(ctx: Context, record: FunctionRecord) -> bool:
    """Return whether the secrets of a function are there, and its registrant may have them."""
    try:
        for _ in _authorized(ctx, record):
            pass
    except (PermissionDeniedError, TableNotFoundError):
        return False
    return True


def _authorized(ctx: Context, record: FunctionRecord) -> Iterator[tuple[str, Id, SecretRecord]]:
    """Yield the variable, the name and the record of each secret, once its registrant was found to have the rights."""
    registrant = _registrant(record)
    own = registrant.context(ctx)
    for binding in read_definition(record).secret_bindings:
        path = _path_of(binding)
        secret = ctx.store.find_secret(record.secret_ids.get(binding.variable, ""))
        if secret is None or (parent := ctx.store.object_path(NAMESPACE, secret.namespace_id)) is None:
            raise TableNotFoundError(
                f"The secret {path} of this function was dropped: register the function again, if it is to get "
                "what has the name now."
            )
        registrant.authorize_namespace(own, Id(parent), secret.namespace_id, Privilege.MANAGE_SECRETS.value)
        yield binding.variable, path, secret


def _registrant(record: FunctionRecord) -> Definer:
    """Return who registered a version; of an earlier server's its name is known, and not its groups."""
    if record.registrant:
        return Definer(msgspec.json.decode(record.registrant, type=Principal), _REFUSAL)
    return Definer(EVERYBODY if record.created_by == EVERYBODY.name else Principal(record.created_by), _REFUSAL)


def _path_of(binding: SecretBinding) -> Id:
    return check_id(Id((*binding.secret_ref.namespace_path, binding.secret_ref.name)))


def read_definition(record: FunctionRecord) -> Definition:
    """Return the definition of a version."""
    return msgspec.json.decode(record.definition, type=Definition)
