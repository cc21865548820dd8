"""Operations on secrets: values that functions get as environment variables, and that no response ever has.

A value is encrypted before it reaches the catalog, by a key of the setting `secret_keys`. Only a job whose function
names the secret can have it decrypted.

A function names secrets by their paths. When it is registered, these become ids, and at each job its registrant needs
what it needed then: so a new value of the same secret reaches the function, a secret that was dropped and made anew
under the name does not, and nothing does once the registrant has lost `manage_secrets`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import authorize_namespace
from tiltyard.access.needs import on_namespace, on_parent
from tiltyard.access.stored_definitions import Definer
from tiltyard.model.functions import Definition
from tiltyard.model.ids import Id, check_id, namespace_id, table_id
from tiltyard.model.operations import operation
from tiltyard.model.principals import EVERYBODY, Principal, Privilege
from tiltyard.model.settings.secret_keys import DecryptionError
from tiltyard.model.spec import models
from tiltyard.store.access.grants import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tiltyard.context import Context
    from tiltyard.model.functions import SecretBinding
    from tiltyard.model.settings.secret_keys import EncryptedValue, SecretKeys
    from tiltyard.store import FunctionRecord, SecretRecord, Store


MAX_VALUE_BYTES = 64 << 10
MAX_SECRETS = 1000
"""The greatest number of secrets in a namespace."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")


MANAGE_SECRET = on_parent(Privilege.MANAGE_SECRETS, "secret")


@operation(needs=MANAGE_SECRET, keyed=False)
def create_secret(ctx: Context, request: models.CreateSecretRequest) -> models.CreateSecretResponse:
    """Encrypt a value, and store it under a new name.

    Raises ConcurrentModificationError (the name is taken), InvalidInputError (a name or a value that is not allowed),
    NamespaceNotFoundError, UnsupportedOperationError (the server has no key for secrets).
    """
    path, value = _secret_id(request.id), _check_value(request.value)
    parent_id, keys = find_namespace_id(ctx, path.parent, "Secrets"), _keys(ctx)
    if len(ctx.store.list_secrets(parent_id, None, MAX_SECRETS)) == MAX_SECRETS:
        raise InvalidInputError(f"The namespace has {MAX_SECRETS} secrets already.")
    if not ctx.store.add_secret(parent_id, path.name, keys.encrypt(value, _owner(parent_id, path.name))):
        raise ConcurrentModificationError(f"Secret already exists: {path}")
    return models.CreateSecretResponse()


@operation(needs=MANAGE_SECRET, keyed=False)
def alter_secret(ctx: Context, request: models.AlterSecretRequest) -> models.AlterSecretResponse:
    """Replace a secret's value; jobs that begin from now on get the new one. Raises as `create_secret` does."""
    path, value = _secret_id(request.id), _check_value(request.value)
    parent_id, keys = find_namespace_id(ctx, path.parent, "Secrets"), _keys(ctx)
    if not ctx.store.alter_secret(parent_id, path.name, keys.encrypt(value, _owner(parent_id, path.name))):
        raise secret_not_found(path)
    return models.AlterSecretResponse()


@operation(needs=MANAGE_SECRET, changes=False)
def describe_secret(ctx: Context, request: models.DescribeSecretRequest) -> models.DescribeSecretResponse:
    """Describe a secret, but for its value. Raises TableNotFoundError (there is no such secret)."""
    path = _secret_id(request.id)
    record = ctx.store.describe_secret(find_namespace_id(ctx, path.parent, "Secrets"), path.name)
    if record is None:
        raise secret_not_found(path)
    return models.DescribeSecretResponse(
        name=record.name, created_at_millis=record.created_at, updated_at_millis=record.updated_at
    )


@operation(needs=on_namespace(Privilege.MANAGE_SECRETS), changes=False)
def list_secrets(ctx: Context, request: models.ListSecretsRequest) -> models.ListSecretsResponse:
    """List the names of a namespace's secrets. Raises NamespaceNotFoundError, InvalidInputError."""
    parent_id = find_namespace_id(ctx, namespace_id(request.id), "Secrets")
    names, token = ctx.paging.fetch_page(
        f"secrets {parent_id}",
        request.page_token,
        request.limit,
        lambda after, count: ctx.store.list_secrets(parent_id, after, count),
        lambda name: name,
    )
    return models.ListSecretsResponse(secrets=[models.SecretEntry(name=name) for name in names], page_token=token)


@operation(needs=MANAGE_SECRET)
def drop_secret(ctx: Context, request: models.DropSecretRequest) -> models.DropSecretResponse:
    """Delete a secret; jobs of functions that name it fail from now on. Raises TableNotFoundError (there is none)."""
    path = _secret_id(request.id)
    if not ctx.store.drop_secret(find_namespace_id(ctx, path.parent, "Secrets"), path.name):
        raise secret_not_found(path)
    return models.DropSecretResponse()


def read_secret_value(ctx: Context, path: Id, record: SecretRecord) -> str:
    """Decrypt a secret, for the driver of a job whose function names it as `path`.

    Raises InvalidTableStateError (no key of the server decrypts it).
    """
    try:
        return decrypt_record(ctx.services.secret_keys, record)
    except DecryptionError as error:
        raise InvalidTableStateError(f"The secret {path} cannot be decrypted: {error}.") from error


def decrypt_record(keys: SecretKeys, record: SecretRecord) -> str:
    """Decrypt the value of a secret. Raises DecryptionError."""
    return keys.decrypt(record.value, _owner(record.namespace_id, record.name))


def reencrypt(store: Store, keys: SecretKeys) -> int:
    """Encrypt all values with the first key; return how many were not before. Raises DecryptionError."""
    assert keys.first_id is not None

    def encrypt(record: SecretRecord) -> EncryptedValue:
        return keys.encrypt(decrypt_record(keys, record), _owner(record.namespace_id, record.name))

    return store.reencrypt_secrets(keys.first_id, encrypt)


def find_namespace_id(ctx: Context, path: Id, kind: str) -> int:
    """Return the id of the namespace of a secret or a function. Raises NamespaceNotFoundError.

    Below a mount there are none: UnsupportedOperationError.
    """
    if ctx.services.mounts.find(path) is not None:
        raise UnsupportedOperationError(f"{kind} are in namespaces of this catalog, not below a mount.")
    resolved_id = ctx.resolved_namespace_id(path)
    return resolved_id or ctx.store.describe_namespace(path).id


def secret_not_found(path: Id) -> TableNotFoundError:
    """Create the error for a secret that does not exist."""
    return TableNotFoundError(f"Secret not found: {path}")


def _secret_id(names: Sequence[str] | None) -> Id:
    path = table_id(names)
    if _NAME.fullmatch(path.name) is None:
        raise InvalidInputError("A secret's name has 1 to 255 of the characters A to Z, a to z, 0 to 9, '_', '.', '-'.")
    return path


def _check_value(value: str) -> str:
    """Return a value that an environment variable can have. Raises InvalidInputError, which does not show it."""
    if not value or "\0" in value:
        raise InvalidInputError("A secret's value has at least one character, and no NUL.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInputError("A secret's value is text that UTF-8 can encode.") from None
    if size > MAX_VALUE_BYTES:
        raise InvalidInputError(f"A secret's value has {MAX_VALUE_BYTES} bytes at most.")
    return value


def _keys(ctx: Context) -> SecretKeys:
    keys = ctx.services.secret_keys
    if keys.first_id is None:
        raise UnsupportedOperationError(
            "This server stores no secrets: its setting 'secret_keys' names the key that encrypts them."
        )
    return keys


def _owner(parent_id: int, name: str) -> bytes:
    """Return what a value is bound to: the ids of namespaces are never given twice."""
    return f"{parent_id}\0{name}".encode()


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
        if not ctx.is_unchecked:
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
