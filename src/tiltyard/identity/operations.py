"""Operations on API keys and principals. Administrators may call all; others only those for their own keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.access.authorization import is_administrator
from tiltyard.access.needs import ADMINISTRATORS, OWNER_OR_ADMINISTRATOR
from tiltyard.identity import keys
from tiltyard.identity.keys import CreatedKey, NewKeyOptions
from tiltyard.model.ids import check_name
from tiltyard.model.operations import operation
from tiltyard.model.principals import OPERATOR
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import KeyRecord, PrincipalRecord

MAX_EXPIRY_SECONDS = 100 * 366 * 86400
DEFAULT_OVERLAP_SECONDS = 86400


@operation(needs=ADMINISTRATORS, keyed=False, doubles=True)
def create_api_key(ctx: Context, request: models.CreateApiKeyRequest) -> models.CreateApiKeyResponse:
    """Create an API key of a principal, which is created if there is none. Only this response has the key.

    Raises InvalidInputError.
    """
    options = NewKeyOptions(request.note or "", _expires_at(ctx.clock, request.expires_in_seconds))
    administrator = bool(request.administrator)
    created = keys.create_key(ctx.store, ctx.clock, request.principal, options, administrator=administrator)
    return models.CreateApiKeyResponse(api_key=created.text, key=to_api_key(created.record))


@operation(needs=OWNER_OR_ADMINISTRATOR, changes=False)
def list_api_keys(ctx: Context, request: models.ListApiKeysRequest) -> models.ListApiKeysResponse:
    """List API keys by principal and age, without their secrets; those of the caller, unless it is an administrator."""
    principal = request.principal
    if not is_administrator(ctx):
        if principal not in (None, ctx.principal.name):
            raise PermissionDeniedError("Only administrators see the keys of others.")
        principal = ctx.principal.name
    records, token = ctx.paging.fetch_page(
        f"keys {principal!r}",
        request.page_token,
        request.limit,
        lambda after, count: ctx.store.list_keys(principal, after, count),
        lambda key: (key.principal, key.created_at, key.id),
    )
    return models.ListApiKeysResponse(keys=[to_api_key(key) for key in records], page_token=token)


@operation(needs=OWNER_OR_ADMINISTRATOR, keyed=False, doubles=True)
def rotate_api_key(ctx: Context, request: models.RotateApiKeyRequest) -> models.RotateApiKeyResponse:
    """Create a key that replaces another, which expires after `overlap_seconds` (by default a day).

    A caller's new key does not expire later than its old one, unless the caller is an administrator. Raises
    InvalidInputError (no such key, or it has ended).
    """
    old = _own_key(ctx, request.key_id)
    options = NewKeyOptions(request.note or "", _expires_at(ctx.clock, request.expires_in_seconds))
    if not is_administrator(ctx) and old.expires_at is not None:
        options = NewKeyOptions(options.note, min(old.expires_at, options.expires_at or old.expires_at))
    overlap = DEFAULT_OVERLAP_SECONDS if request.overlap_seconds is None else request.overlap_seconds
    created = _rotate(ctx, request.key_id, options, overlap)
    return models.RotateApiKeyResponse(api_key=created.text, key=to_api_key(created.record))


@operation(needs=OWNER_OR_ADMINISTRATOR, while_read_only=True)
def revoke_api_key(ctx: Context, request: models.RevokeApiKeyRequest) -> models.RevokeApiKeyResponse:
    """Revoke a key and the tokens issued for it; every server refuses them within seconds.

    Raises InvalidInputError (no such key).
    """
    _own_key(ctx, request.key_id)
    ctx.store.revoke_key(request.key_id)
    return models.RevokeApiKeyResponse(key=to_api_key(keys.get_key(ctx.store, request.key_id)))


@operation(needs=ADMINISTRATORS, changes=False)
def list_principals(ctx: Context, request: models.ListPrincipalsRequest) -> models.ListPrincipalsResponse:
    """List the principals that have keys, or that an administrator has named."""
    records, token = ctx.paging.fetch_page(
        "principals",
        request.page_token,
        request.limit,
        ctx.store.list_principals,
        lambda principal: principal.name,
    )
    return models.ListPrincipalsResponse(
        principals=[to_principal_entry(record) for record in records], page_token=token
    )


@operation(needs=ADMINISTRATORS)
def alter_principal(ctx: Context, request: models.AlterPrincipalRequest) -> models.AlterPrincipalResponse:
    """Set whether a principal is an administrator, and whether it is disabled; create it if there is none of the name.

    A principal of a provider is named provider:name, as its tokens authenticate. Raises InvalidInputError (an invalid
    name; or the caller would disable itself, or end being an administrator).
    """
    name = check_name(request.principal, "principal's name")
    if (
        name == ctx.principal.name
        and ctx.principal != OPERATOR
        and (request.disabled or request.administrator is False)
    ):
        raise InvalidInputError("This would lock you out: let another administrator do it.")
    record = keys.alter_principal(ctx.store, name, request.administrator, request.disabled)
    return models.AlterPrincipalResponse(principal=to_principal_entry(record))


def to_api_key(key: KeyRecord) -> models.ApiKey:
    """Convert a key to the form that clients get."""
    return models.ApiKey(
        key_id=key.id,
        principal=key.principal,
        note=key.note,
        created_at_millis=key.created_at,
        expires_at_millis=key.expires_at,
        revoked_at_millis=key.revoked_at,
        last_used_at_millis=key.last_used_at,
    )


def to_principal_entry(record: PrincipalRecord) -> models.PrincipalEntry:
    """Convert a principal to the form that clients get."""
    return models.PrincipalEntry(
        name=record.name,
        administrator=record.administrator,
        disabled=record.disabled,
        created_at_millis=record.created_at,
    )


def _own_key(ctx: Context, key_id: str) -> KeyRecord:
    """Return a key that the caller may change; another's does not exist for it. Raises InvalidInputError."""
    key = keys.get_key(ctx.store, key_id)
    if not is_administrator(ctx) and key.principal != ctx.principal.name:
        raise keys.key_not_found(key_id)
    return key


def _rotate(ctx: Context, key_id: str, options: NewKeyOptions, overlap_seconds: int) -> CreatedKey:
    if overlap_seconds > MAX_EXPIRY_SECONDS:
        raise InvalidInputError("The overlap is longer than a hundred years.")
    return keys.rotate_key(ctx.store, ctx.clock, key_id, options, overlap_seconds * 1000)


def _expires_at(clock: Callable[[], int], seconds: int | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds <= MAX_EXPIRY_SECONDS:
        raise InvalidInputError("A key lives for a second to a hundred years.")
    return clock() + seconds * 1000
