"""The operations on keys and principals. Administrators may do all; everybody may look after keys of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.access import Privilege, is_administrator
from tiltyard.access.needs import OWN, on_server
from tiltyard.identity import keys
from tiltyard.identity.keys import KeyWish, NewKey
from tiltyard.model.ids import check_name
from tiltyard.model.operations import operation
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import KeyRecord, PrincipalRecord

LONGEST_SECONDS = 100 * 366 * 86400
OVERLAP_SECONDS = 86400


@operation(needs=on_server(Privilege.ADMINISTER), keyed=False)
def create_api_key(ctx: Context, request: models.CreateApiKeyRequest) -> models.CreateApiKeyResponse:
    """Create an API key of a principal, who is made if there is none; the answer alone holds the key.

    Raises InvalidInputError.
    """
    wish = KeyWish(request.note or "", _expiry(ctx.clock, request.expires_in_seconds))
    administrator = bool(request.administrator)
    made = keys.create_key(ctx.store, ctx.clock, request.principal, wish, administrator=administrator)
    return models.CreateApiKeyResponse(api_key=made.text, key=told_key(made.record))


@operation(needs=OWN, changes=False)
def list_api_keys(ctx: Context, request: models.ListApiKeysRequest) -> models.ListApiKeysResponse:
    """List API keys by principal and age, without their secrets; one's own, where one may not see all."""
    principal = request.principal
    if not is_administrator(ctx):
        if principal not in (None, ctx.principal.name):
            raise PermissionDeniedError("Only administrators see the keys of others.")
        principal = ctx.principal.name
    found, token = ctx.paging.fetch_page(
        f"keys {principal!r}",
        request.page_token,
        request.limit,
        lambda after, count: ctx.store.list_keys(principal, after, count),
        lambda key: (key.principal, key.created_at, key.id),
    )
    return models.ListApiKeysResponse(keys=[told_key(key) for key in found], page_token=token)


@operation(needs=OWN, keyed=False)
def rotate_api_key(ctx: Context, request: models.RotateApiKeyRequest) -> models.RotateApiKeyResponse:
    """Create a key in the place of another, which ends after `overlap_seconds` (a day unless said).

    One's own key is followed by none that lives longer than it. Raises InvalidInputError (none, or a dead one).
    """
    old = _own_key(ctx, request.key_id)
    wish = KeyWish(request.note or "", _expiry(ctx.clock, request.expires_in_seconds))
    if not is_administrator(ctx) and old.expires_at is not None:
        wish = KeyWish(wish.note, min(old.expires_at, wish.expires_at or old.expires_at))
    overlap = OVERLAP_SECONDS if request.overlap_seconds is None else request.overlap_seconds
    made = _rotated(ctx, request.key_id, wish, overlap)
    return models.RotateApiKeyResponse(api_key=made.text, key=told_key(made.record))


@operation(needs=OWN)
def revoke_api_key(ctx: Context, request: models.RevokeApiKeyRequest) -> models.RevokeApiKeyResponse:
    """End a key now, on every server within seconds, with the tokens got by it. Raises InvalidInputError (none)."""
    _own_key(ctx, request.key_id)
    ctx.store.revoke_key(request.key_id)
    return models.RevokeApiKeyResponse(key=told_key(keys.existing_key(ctx.store, request.key_id)))


@operation(needs=on_server(Privilege.ADMINISTER), changes=False)
def list_principals(ctx: Context, request: models.ListPrincipalsRequest) -> models.ListPrincipalsResponse:
    """List the principals that have keys, or that an administrator has named."""
    found, token = ctx.paging.fetch_page(
        "principals",
        request.page_token,
        request.limit,
        ctx.store.list_principals,
        lambda principal: principal.name,
    )
    return models.ListPrincipalsResponse(principals=[told_principal(one) for one in found], page_token=token)


@operation(needs=on_server(Privilege.ADMINISTER))
def alter_principal(ctx: Context, request: models.AlterPrincipalRequest) -> models.AlterPrincipalResponse:
    """Make a principal an administrator, or disable it, or undo that; one that was not known is now.

    A provider's principal is named as its tokens make it, provider:name. Raises InvalidInputError
    (a name of no use; oneself, disabled or no administrator any more).
    """
    name = check_name(request.principal, "principal's name")
    if name == ctx.principal.name and (request.disabled or request.administrator is False):
        raise InvalidInputError("This would shut you out: let another administrator do it.")
    record = keys.alter_principal(ctx.store, name, request.administrator, request.disabled)
    return models.AlterPrincipalResponse(principal=told_principal(record))


def told_key(key: KeyRecord) -> models.ApiKey:
    """A key, as clients are told of it."""
    return models.ApiKey(
        key_id=key.id,
        principal=key.principal,
        note=key.note,
        created_at_millis=key.created_at,
        expires_at_millis=key.expires_at,
        revoked_at_millis=key.revoked_at,
        last_used_at_millis=key.last_used_at,
    )


def told_principal(one: PrincipalRecord) -> models.PrincipalEntry:
    """A principal, as clients are told of it."""
    return models.PrincipalEntry(
        name=one.name, administrator=one.administrator, disabled=one.disabled, created_at_millis=one.created_at
    )


def _own_key(ctx: Context, key_id: str) -> KeyRecord:
    """A key that the caller may change: another's does not exist for it. Raises InvalidInputError."""
    key = keys.existing_key(ctx.store, key_id)
    if not is_administrator(ctx) and key.principal != ctx.principal.name:
        raise keys.no_such_key(key_id)
    return key


def _rotated(ctx: Context, key_id: str, wish: KeyWish, overlap_seconds: int) -> NewKey:
    if overlap_seconds > LONGEST_SECONDS:
        raise InvalidInputError("The overlap is longer than a hundred years.")
    return keys.rotate_key(ctx.store, ctx.clock, key_id, wish, overlap_seconds * 1000)


def _expiry(clock: Callable[[], int], seconds: int | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds <= LONGEST_SECONDS:
        raise InvalidInputError("A key lives for a second to a hundred years.")
    return clock() + seconds * 1000
