"""lancedb's authorization (`catalog.authz()`) in this server's words: its ACLs are grants, its role bindings members.

Nothing is granted that was not asked for. A privilege of lancedb that is only a part of one here (INSERT is a part of
`write`) is listed for who has that, and refused where it is to be granted alone. A privilege that lancedb has no word
for is `PRIVILEGE1xx`, which its client passes through. docs/security.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableNotFoundError,
)

from tiltyard.access.grantees import Grantee, GranteeKind
from tiltyard.access.needs import ADMINISTRATORS, CREATOR_PRIVILEGES
from tiltyard.catalog.grants import LIST_GRANTS, MANAGE_GRANTS, ObjectKind, Securable, find_securable, grant_privileges
from tiltyard.model.ids import DEFAULT_DELIMITER, Id, check_id, check_name
from tiltyard.model.operations import Needs, operation
from tiltyard.model.principals import ALL, Privilege, privilege_names
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tiltyard.context import Context
    from tiltyard.store import GrantRecord

MAX_PAGE = 100
"""Pairs of a subject and an object in a page, at most: as lancedb's documentation says."""
OWNERSHIP = "OWNERSHIP"
_OWN = "PRIVILEGE"
_FIRST_OWN = 100
_PUBLIC = "public"
_OTHER = "tiltyard"
"""The type of an object that lancedb has no words for: its client keeps those as they are."""
_KINDS = {"p": GranteeKind.PRINCIPAL, "g": GranteeKind.GROUP, "r": GranteeKind.ROLE}

_EXACT: dict[str, dict[str, Privilege]] = {
    "system": {"OPERATE": Privilege.ADMINISTER},
    "database": {"USAGE": Privilege.USE},
    "namespace": {"USAGE": Privilege.USE, "CREATE_FUNCTION": Privilege.CREATE_FUNCTION},
    "table": {"SELECT": Privilege.READ},
    "view": {"SELECT": Privilege.READ},
}
"""Privileges that are the same in both, by the type of the object."""
_PARTS: dict[str, dict[str, Privilege]] = {
    "system": {"CREATE_DATABASE": Privilege.CREATE},
    "database": {"CREATE_NAMESPACE": Privilege.CREATE},
    "namespace": {
        "CREATE_NAMESPACE": Privilege.CREATE,
        "CREATE_TABLE": Privilege.CREATE,
        "CREATE_MATERIALIZED_VIEW": Privilege.CREATE,
        "CREATE_VIEW": Privilege.CREATE,
        "CREATE_SECRET": Privilege.MANAGE_SECRETS,
    },
    "table": {"INSERT": Privilege.WRITE, "UPDATE": Privilege.WRITE, "DELETE": Privilege.WRITE},
    "view": {},
}
"""Privileges of lancedb that are a part of one here."""


def _own_word(privilege: Privilege) -> str:
    return f"{_OWN}{_FIRST_OWN + int(privilege).bit_length() - 1}"


_OWN_WORDS = {_own_word(privilege): privilege for privilege in Privilege}


# Objects and subjects


def _parse_object(text: str) -> tuple[str, ObjectKind, list[str]]:
    """Return the type of an object in lancedb's words, and the securable. Raises InvalidInputError."""
    kind, _, rest = text.partition(":")
    if kind in ("secret", "function"):
        raise InvalidInputError(
            f"A {kind} has no grants of its own here: grant on its namespace, or on a table or view that it serves."
        )
    if kind == "system" and not rest:
        return kind, ObjectKind.SERVER, []
    database, _, path = rest.partition(":")
    parts = [part for part in path.split(DEFAULT_DELIMITER) if path]
    if kind == _OTHER and database in (ObjectKind.TABLE, ObjectKind.NAMESPACE) and parts:
        return database, ObjectKind(database), list(check_id(Id(parts)))
    if kind not in _EXACT or kind == "system" or not database or bool(parts) == (kind == "database"):
        raise InvalidInputError(
            f"'{text[:256]}' is no object: system, database:DB, namespace:DB:a$b, table:DB:a$t, or view:DB:a$v."
        )
    below = parts[1:] if parts[:1] == [_PUBLIC] else parts
    if kind in ("table", "view"):
        if not below:
            raise InvalidInputError(f"'{text[:256]}' names no {kind}.")
        return kind, ObjectKind.TABLE, list(check_id(Id((database, *below))))
    return kind, ObjectKind.NAMESPACE, list(check_id(Id((database, *below))))


def _format_object(kind: str, path: Sequence[str]) -> tuple[str, str]:
    """Return the type of a securable in lancedb's words, and its text."""
    if kind == ObjectKind.SERVER:
        return "system", "system"
    if kind == ObjectKind.NAMESPACE and len(path) == 1:
        return "database", f"database:{path[0]}"
    if len(path) < 2 or any(DEFAULT_DELIMITER in part for part in path) or path[1] == _PUBLIC:
        return kind, f"{_OTHER}:{kind}:{DEFAULT_DELIMITER.join(path)}"
    inner = (_PUBLIC, path[1]) if kind == ObjectKind.TABLE and len(path) == 2 else path[1:]
    return kind, f"{kind}:{path[0]}:{DEFAULT_DELIMITER.join(inner)}"


def _parse_subject(text: str, *allowed: GranteeKind) -> Grantee:
    """Return the grantee of a subject. Raises InvalidInputError, which never repeats an API key."""
    prefix, colon, name = text.partition(":")
    if prefix == "a":
        raise InvalidInputError("An API key is no subject here: name its principal, as p:NAME.")
    kind = _KINDS.get(prefix.lower())
    if not colon or kind is None or prefix == "R" or (allowed and kind not in allowed):
        words = ", ".join(f"{letter}:NAME" for letter, kind in _KINDS.items() if not allowed or kind in allowed)
        raise InvalidInputError(f"A subject of this call is {words}.")
    return Grantee(kind, check_name(name))


def _format_subject(grantee: Grantee) -> str:
    return f"{grantee.kind[0]}:{grantee.name}"


# Privileges


def _entries(subject: str, object_: str, kind: str, bits: int) -> list[models.AclEntry]:
    """Return what a grantee was granted on an object, in lancedb's words: each bit is told once, or by its parts."""
    words: list[str] = []
    if kind != "system" and bits & CREATOR_PRIVILEGES == CREATOR_PRIVILEGES:
        words.append(OWNERSHIP)
        bits &= ~CREATOR_PRIVILEGES
    known = {**_EXACT.get(kind, {}), **_PARTS.get(kind, {})}
    words += [word for word, privilege in known.items() if bits & privilege]
    told = {int(privilege) for privilege in known.values()}
    words += [word for word, privilege in _OWN_WORDS.items() if bits & privilege and int(privilege) not in told]
    return [models.AclEntry(subject_id=subject, object=object_, privilege=word) for word in words]


def _granted_bits(kind: str, word: str, *, is_revoked: bool) -> int:
    """Return the privileges that a word grants, or that it revokes. Raises InvalidInputError."""
    if (own := _OWN_WORDS.get(word)) is not None:
        return int(own)
    if (exact := _EXACT[kind].get(word)) is not None:
        return int(exact)
    if word == OWNERSHIP and kind != "system":
        if is_revoked:
            raise InvalidInputError("Ownership is not revoked: grant OWNERSHIP to another subject, and it moves there.")
        return int(CREATOR_PRIVILEGES)
    part = _PARTS[kind].get(word)
    if part is None:
        raise InvalidInputError(f"'{word[:64]}' has no counterpart on this kind of object: docs/security.md has those.")
    if is_revoked:
        return int(part)
    (name,) = privilege_names(int(part))
    raise InvalidInputError(
        f"{word} cannot be granted alone: here it is a part of `{name}`. To grant all of that, add {_own_word(part)}."
    )


# ACLs


def _as_grant(request: models.AddAclRequest | models.DeleteAclRequest) -> models.GrantPrivilegesRequest:
    _, kind, path = _parse_object(request.object)
    return models.GrantPrivilegesRequest(object_kind=kind, id=path or None, grantee="", privileges=[])


def _change(ctx: Context, request: Any) -> Context:
    authorized: Context = MANAGE_GRANTS.authorize(ctx, _as_grant(request))
    return authorized


def _list(ctx: Context, request: models.ListAclsRequest) -> Context:
    listed = models.ListGrantsRequest()
    if request.object is not None:
        _, kind, path = _parse_object(request.object)
        listed = models.ListGrantsRequest(object_kind=kind, id=path or None)
    elif request.subject is not None:
        grantee = _parse_subject(request.subject)
        listed = models.ListGrantsRequest(grantee=grantee.name, grantee_kind=grantee.kind)
    authorized: Context = LIST_GRANTS.authorize(ctx, listed)
    return authorized


CHANGE_ACL = Needs("`manage_grants` on the object, and there what is granted", _change)
LIST_ACLS = Needs("`manage_grants` on the object, or on the server; nothing for the caller's own", _list)


@dataclass(frozen=True, slots=True)
class _Acl:
    """What an ACL says: the privileges that one grantee gets, or loses, on one object."""

    grantee: Grantee
    securable: Securable
    bits: int

    @classmethod
    def of(cls, ctx: Context, request: models.AddAclRequest | models.DeleteAclRequest, *, is_revoked: bool) -> _Acl:
        """Read a request. Raises InvalidInputError, and what finding the object raises."""
        kind, object_kind, path = _parse_object(request.object)
        grantee = _parse_subject(request.subject)
        bits = _granted_bits(kind, request.privilege, is_revoked=is_revoked)
        return cls(grantee, find_securable(ctx, object_kind, path or None), bits)

    def granted_bits(self, ctx: Context) -> int:
        """Return which of its privileges are granted."""
        return ctx.store.privileges_on(self.securable.kind, self.securable.id, [str(self.grantee)]) & self.bits


@operation(needs=CHANGE_ACL)
def add_acl(ctx: Context, request: models.AddAclRequest) -> models.AddAclResponse:
    """Grant one privilege. OWNERSHIP moves from the grantees that had it.

    Raises as GrantPrivileges does, ConcurrentModificationError for what is granted already.
    """
    acl = _Acl.of(ctx, request, is_revoked=False)
    grantee, securable = acl.grantee, acl.securable
    is_granted = acl.granted_bits(ctx) == acl.bits
    if not is_granted:
        grant_privileges(
            ctx,
            models.GrantPrivilegesRequest(
                object_kind=securable.kind,
                id=list(securable.path) or None,
                grantee=grantee.name,
                grantee_kind=grantee.kind,
                privileges=privilege_names(acl.bits),
            ),
        )
    moves = request.privilege == OWNERSHIP and _take_ownership(ctx, securable.kind, securable.id, grantee)
    if is_granted and not moves:
        raise ConcurrentModificationError(f"'{_format_subject(grantee)}' has {request.privilege[:64]} there already.")
    return models.AddAclResponse()


def _take_ownership(ctx: Context, kind: str, object_id: int, owner: Grantee) -> bool:
    """Revoke from the former owners of an object what an owner has; return whether there were any.

    The new owner has it before: a call that was cut off leaves two, and the same call again ends it.
    """
    after: str | None = None
    found = False
    while records := ctx.store.grants_on(kind, object_id, after, MAX_PAGE):
        after = records[-1].grantee
        for record in records:
            if record.grantee != str(owner) and record.privileges & CREATOR_PRIVILEGES == CREATOR_PRIVILEGES:
                ctx.store.revoke(record.grantee, kind, object_id, ALL & ~CREATOR_PRIVILEGES)
                found = True
    ctx.rights_cache.refresh_next()
    return found


@operation(needs=CHANGE_ACL)
def delete_acl(ctx: Context, request: models.DeleteAclRequest) -> models.DeleteAclResponse:
    """Revoke one privilege; one that is a part of a privilege here takes all of that.

    Raises as RevokePrivileges does, TableNotFoundError where it was not granted.
    """
    acl = _Acl.of(ctx, request, is_revoked=True)
    if not acl.granted_bits(ctx):
        raise TableNotFoundError(f"'{_format_subject(acl.grantee)}' was not granted {request.privilege[:64]} there.")
    ctx.store.revoke(str(acl.grantee), acl.securable.kind, acl.securable.id, ALL & ~acl.bits)
    ctx.rights_cache.refresh_next()
    return models.DeleteAclResponse()


@operation(needs=LIST_ACLS, changes=False)
def list_acls(ctx: Context, request: models.ListAclsRequest) -> models.ListAclsResponse:
    """List grants: all, those on an object, to a subject, or both. Raises as ListGrants does."""
    limit = MAX_PAGE if request.max_results is None else min(MAX_PAGE, request.max_results)
    if request.object is not None:
        kind, securable_kind, path = _parse_object(request.object)
        securable = find_securable(ctx, securable_kind, path or None)
        if request.subject is not None:
            grantee = _parse_subject(request.subject)
            bits = ctx.store.privileges_on(securable.kind, securable.id, [str(grantee)])
            return models.ListAclsResponse(entries=_entries(_format_subject(grantee), request.object, kind, bits))
        records, token = ctx.paging.fetch_page(
            f"acls on {securable.kind} {securable.id}",
            request.continuation_token,
            limit,
            lambda after, count: ctx.store.grants_on(securable.kind, securable.id, after, count),
            lambda record: record.grantee,
        )
        return _to_response(((record, kind, request.object or "") for record in records), token)
    if request.subject is None:
        records, token = ctx.paging.fetch_page(
            "acls",
            request.continuation_token,
            limit,
            ctx.store.all_grants,
            lambda record: (record.kind, record.object_id, record.grantee),
        )
    else:
        grantee = _parse_subject(request.subject)
        records, token = ctx.paging.fetch_page(
            f"acls to {grantee}",
            request.continuation_token,
            limit,
            lambda after, count: ctx.store.grants_to(str(grantee), after, count),
            lambda record: (record.kind, record.object_id),
        )
    paths = [(record, ctx.store.object_path(record.kind, record.object_id)) for record in records]
    return _to_response(
        ((record, *_format_object(record.kind, path)) for record, path in paths if path is not None), token
    )


def _to_response(grants: Iterable[tuple[GrantRecord, str, str]], token: str | None) -> models.ListAclsResponse:
    entries = [
        entry
        for record, kind, object_ in grants
        for entry in _entries(_format_subject(Grantee.from_text(record.grantee)), object_, kind, record.privileges)
    ]
    return models.ListAclsResponse(entries=entries, continuation_token=token)


# Role bindings


_MEMBERS = (GranteeKind.PRINCIPAL, GranteeKind.GROUP)


@operation(needs=ADMINISTRATORS)
def add_role_binding(ctx: Context, request: models.AddRoleBindingRequest) -> models.AddRoleBindingResponse:
    """Add a principal or a group to a role, unless it is in it. Raises InvalidInputError (no such role)."""
    member = str(_parse_subject(request.subject, *_MEMBERS))
    if not ctx.store.has_role(request.role):
        raise InvalidInputError(f"There is no role '{request.role[:256]}': create it first.")
    ctx.store.add_member(request.role, member)
    ctx.rights_cache.refresh_next()
    return models.AddRoleBindingResponse()


@operation(needs=ADMINISTRATORS)
def delete_role_binding(ctx: Context, request: models.DeleteRoleBindingRequest) -> models.DeleteRoleBindingResponse:
    """Remove a principal or a group from a role, if it is in it. Raises InvalidInputError."""
    ctx.store.drop_member(request.role, str(_parse_subject(request.subject, *_MEMBERS)))
    ctx.rights_cache.refresh_next()
    return models.DeleteRoleBindingResponse()


@operation(needs=ADMINISTRATORS, changes=False)
def list_role_bindings(ctx: Context, request: models.ListRoleBindingsRequest) -> models.ListRoleBindingsResponse:
    """List who is in which role; without a subject, a page has all members of its roles. Raises InvalidInputError."""
    token: str | None = None
    member = None if request.subject is None else str(_parse_subject(request.subject, *_MEMBERS))
    roles: Sequence[str]
    if member is not None:
        roles = [role for role in ctx.store.roles_of([member]) if request.role in (None, role)]
    elif request.role is not None:
        roles = [request.role]
    else:
        limit = MAX_PAGE if request.max_results is None else min(MAX_PAGE, request.max_results)
        roles, token = ctx.paging.fetch_page(
            "role bindings", request.continuation_token, limit, ctx.store.list_roles, lambda name: name
        )
    bindings = [
        models.RoleBinding(subject_id=_format_subject(Grantee.from_text(name)), role=role)
        for role in roles
        for name in ([member] if member is not None else ctx.store.members_of(role))
    ]
    return models.ListRoleBindingsResponse(bindings=bindings, continuation_token=token)


@operation(needs=ADMINISTRATORS, changes=False)
def get_authz_principal(ctx: Context, request: models.GetAuthzPrincipalRequest) -> models.GetAuthzPrincipalResponse:
    """Describe a principal by its roles; its groups are in its tokens, and nowhere else. Raises InvalidInputError."""
    grantee = _parse_subject(request.principal, GranteeKind.PRINCIPAL)
    return models.GetAuthzPrincipalResponse(
        principal_id=grantee.name,
        principal_name=grantee.name,
        groups=[],
        roles=list(ctx.store.roles_of([str(grantee)])),
    )


@operation(needs=ADMINISTRATORS, changes=False)
def get_authz_group(ctx: Context, request: models.GetAuthzGroupRequest) -> models.GetAuthzGroupResponse:
    """Describe a group by its roles; who is in it, the identity provider alone knows. Raises InvalidInputError."""
    grantee = _parse_subject(request.group, GranteeKind.GROUP)
    return models.GetAuthzGroupResponse(
        group_id=grantee.name, group_name=grantee.name, principals=[], roles=list(ctx.store.roles_of([str(grantee)]))
    )
