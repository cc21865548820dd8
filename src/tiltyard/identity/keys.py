"""API keys: `tilt_<id>_<secret>`. The id finds the key; the secret, 256 random bits, is known to its holder alone.

What is kept is the SHA-256 of the secret. A slow hash, as for passwords, would protect what people choose: nobody
guesses 256 random bits, however quick the hash is, and a slow one would cost each first use a tenth of a second.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, UnauthenticatedError

from tiltyard.model.ids import check_name
from tiltyard.model.principals import EVERYBODY, SERVER

if TYPE_CHECKING:
    from tiltyard.store import KeyRecord, PrincipalRecord, Store, UnitOfWork

MARK = "tilt"
"""How every key begins: so that scanners for secrets know one."""
ID_BYTES, SECRET_BYTES = 8, 32
LONGEST_NOTE = 1_000
FIRST_NAME = "administrator"
OF_A_PROVIDER = ":"
"""What parts a provider from the name it gives, in names of principals: so no key's principal is taken for theirs."""

RESERVED = frozenset({EVERYBODY.name, SERVER.name})

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is shown, once, and its record."""

    text: str
    record: KeyRecord


@dataclass(frozen=True, slots=True)
class KeyWish:
    """What a new key is to be: `note` says what for, `expires_at` (ms since 1970) when it ends, if ever."""

    note: str = ""
    expires_at: int | None = None


def first_key(store: Store) -> str | None:
    """The key of a new administrator, if there is nobody yet: of several servers that start at once, one gets it."""

    def work(catalog: UnitOfWork) -> str | None:
        if not catalog.add_first_principal(FIRST_NAME):
            return None
        return _add(catalog, FIRST_NAME, KeyWish("made at the first start")).text

    return store.transact(work)


def create_key(store: Store, clock: Clock, principal: str, wish: KeyWish, *, administrator: bool) -> NewKey:
    """A new key of a principal, who is made if there is none of this name, and made an administrator if so asked.

    Raises InvalidInputError.
    """
    check_principal(principal)
    _check_wish(wish, clock)

    def work(catalog: UnitOfWork) -> NewKey:
        if not catalog.add_principal(principal, administrator=administrator) and administrator:
            catalog.alter_principal(principal, True, None)
        return _add(catalog, principal, wish)

    return store.transact(work)


def rotate_key(store: Store, clock: Clock, id_: str, wish: KeyWish, overlap_ms: int) -> NewKey:
    """A new key beside the old one, which ends after the overlap. Raises InvalidInputError (none, or a dead one)."""
    _check_wish(wish, clock)
    if overlap_ms < 0:
        raise InvalidInputError("The overlap is a time from now: 0 or more.")

    def work(catalog: UnitOfWork) -> NewKey:
        old = existing_key(catalog, id_)
        now = clock()
        if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
            raise InvalidInputError(f"The key {id_} has ended: create a new one.")
        made = _add(catalog, old.principal, KeyWish(wish.note or old.note, wish.expires_at))
        catalog.expire_key(id_, now + overlap_ms)
        return made

    return store.transact(work)


def existing_key(store: Store | UnitOfWork, id_: str) -> KeyRecord:
    """The key of this id. Raises InvalidInputError."""
    found = store.describe_key(id_)
    if found is None:
        raise no_such_key(id_)
    return found[0]


def no_such_key(id_: str) -> InvalidInputError:
    """What is raised where there is no key of an id, for the one who asks."""
    return InvalidInputError(f"There is no key {id_}: the list of keys shows the ids.")


def alter_principal(store: Store, name: str, administrator: bool | None, disabled: bool | None) -> PrincipalRecord:
    """Change what is not None of a principal, who is made if there is none of this name."""

    def work(catalog: UnitOfWork) -> PrincipalRecord:
        catalog.add_principal(name, administrator=False)
        altered = catalog.alter_principal(name, administrator, disabled)
        assert altered is not None
        return altered

    return store.transact(work)


def proven(store: Store, text: bytes, now_ms: int) -> tuple[KeyRecord, PrincipalRecord]:
    """The key that a text is, and whose. Raises UnauthenticatedError; says why to those only who hold the secret."""
    parsed = _parsed(text)
    found = store.describe_key(parsed[0]) if parsed else None
    if parsed is None or found is None or not hmac.compare_digest(_hash(parsed[1]), found[0].hash):
        raise UnauthenticatedError("This API key is not known here.")
    require_live(found[0], now_ms)
    return found


def require_live(key: KeyRecord, now_ms: int) -> None:
    """Raise UnauthenticatedError if a key was revoked or has expired."""
    if key.revoked_at is not None:
        raise UnauthenticatedError(f"The API key {key.id} was revoked.")
    if key.expires_at is not None and key.expires_at <= now_ms:
        raise UnauthenticatedError(f"The API key {key.id} has expired.")


def check_principal(name: str) -> None:
    """Raise InvalidInputError for what cannot be the name of a principal with keys."""
    check_name(name, "principal's name")
    if name in RESERVED:
        raise InvalidInputError(f"'{name}' is what records call callers without a name, or the server: choose another.")
    if OF_A_PROVIDER in name:
        raise InvalidInputError(f"'{name}' is a name that a provider gives: its tokens, not keys, show who that is.")


def _check_wish(wish: KeyWish, clock: Clock) -> None:
    if len(wish.note) > LONGEST_NOTE:
        raise InvalidInputError(f"The note has {len(wish.note)} characters: {LONGEST_NOTE} at most.")
    if wish.expires_at is not None and wish.expires_at <= clock():
        raise InvalidInputError("The key would be dead at once: let it expire later.")


def _add(catalog: UnitOfWork, principal: str, wish: KeyWish) -> NewKey:
    id_, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    record = catalog.add_key(id_, principal, _hash(secret), wish.note, wish.expires_at)
    return NewKey(f"{MARK}_{id_}_{secret}", record)


def _parsed(text: bytes) -> tuple[str, str] | None:
    """Id and secret; None for what has not the form of a key."""
    parts = text.decode("ascii", "replace").split("_", 2)
    if len(parts) != 3 or parts[0] != MARK or len(parts[1]) != 2 * ID_BYTES:
        return None
    return parts[1], parts[2]


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
