"""API keys: `tilt_<id>_<secret>`. The id finds the record; the secret, 256 random bits, is known to its holder alone.

The catalog has the SHA-256 of the secret. A slow hash, as for passwords, protects secrets that people choose: 256
random bits cannot be guessed however fast the hash is, and a slow one would cost each first use a tenth of a second.
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

PREFIX = "tilt"
"""How every key begins, so that secret scanners recognize one."""
ID_BYTES, SECRET_BYTES = 8, 32
MAX_NOTE_LENGTH = 1_000
FIRST_ADMINISTRATOR = "administrator"
PROVIDER_SEPARATOR = ":"
"""Between the provider and the name that it gives, in a principal's name; names of principals with keys have none."""

RESERVED_NAMES = frozenset({EVERYBODY.name, SERVER.name})

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key: its text, which is shown only once, and its record."""

    text: str
    record: KeyRecord


@dataclass(frozen=True, slots=True)
class NewKeyOptions:
    """Options of a new key: `note` says what it is for, `expires_at` (ms since 1970) when it expires, if ever."""

    note: str = ""
    expires_at: int | None = None


def create_first_key(store: Store) -> str | None:
    """Create the first administrator and its key; return the key, or None if there are principals already.

    Of several servers that start at once, one gets the key.
    """

    def work(catalog: UnitOfWork) -> str | None:
        if not catalog.add_first_principal(FIRST_ADMINISTRATOR):
            return None
        return _add_key(catalog, FIRST_ADMINISTRATOR, NewKeyOptions("created at the first start")).text

    return store.transact(work)


def create_key(
    store: Store, clock: Clock, principal: str, options: NewKeyOptions, *, administrator: bool
) -> CreatedKey:
    """Create a key of a principal; create the principal if there is none, and make it an administrator if requested.

    Raises InvalidInputError.
    """
    check_principal_name(principal)
    _check_options(options, clock)

    def work(catalog: UnitOfWork) -> CreatedKey:
        if not catalog.add_principal(principal, administrator=administrator) and administrator:
            catalog.alter_principal(principal, True, None)
        return _add_key(catalog, principal, options)

    return store.transact(work)


def rotate_key(store: Store, clock: Clock, id_: str, options: NewKeyOptions, overlap_ms: int) -> CreatedKey:
    """Create a key that replaces another, which expires after the overlap.

    Raises InvalidInputError (no such key, or it has ended).
    """
    _check_options(options, clock)
    if overlap_ms < 0:
        raise InvalidInputError("The overlap is a time from now: 0 or more.")

    def work(catalog: UnitOfWork) -> CreatedKey:
        old = get_key(catalog, id_)
        now = clock()
        if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
            raise InvalidInputError(f"The key {id_} has ended: create a new one.")
        created = _add_key(catalog, old.principal, NewKeyOptions(options.note or old.note, options.expires_at))
        catalog.expire_key(id_, now + overlap_ms)
        return created

    return store.transact(work)


def get_key(store: Store | UnitOfWork, id_: str) -> KeyRecord:
    """Return the key with this id. Raises InvalidInputError."""
    records = store.describe_key(id_)
    if records is None:
        raise key_not_found(id_)
    return records[0]


def key_not_found(id_: str) -> InvalidInputError:
    """Create the error for a key that does not exist, or not for this caller."""
    return InvalidInputError(f"There is no key {id_}: the list of keys shows the ids.")


def alter_principal(store: Store, name: str, administrator: bool | None, disabled: bool | None) -> PrincipalRecord:
    """Set the flags of a principal that are not None; create the principal if there is none of this name."""

    def work(catalog: UnitOfWork) -> PrincipalRecord:
        catalog.add_principal(name, administrator=False)
        altered = catalog.alter_principal(name, administrator, disabled)
        assert altered is not None
        return altered

    return store.transact(work)


def verify_key(store: Store, text: bytes, now_ms: int) -> tuple[KeyRecord, PrincipalRecord]:
    """Return the record of an API key, and its principal's.

    Raises UnauthenticatedError, which says that the key was revoked or has expired only if the secret is right.
    """
    parsed = _parse_key(text)
    records = store.describe_key(parsed[0]) if parsed else None
    if parsed is None or records is None or not hmac.compare_digest(_hash(parsed[1]), records[0].hash):
        raise UnauthenticatedError("This API key is unknown.")
    require_valid(records[0], now_ms)
    return records


def require_valid(key: KeyRecord, now_ms: int) -> None:
    """Raise UnauthenticatedError if a key was revoked or has expired."""
    if key.revoked_at is not None:
        raise UnauthenticatedError(f"The API key {key.id} was revoked.")
    if key.expires_at is not None and key.expires_at <= now_ms:
        raise UnauthenticatedError(f"The API key {key.id} has expired.")


def check_principal_name(name: str) -> None:
    """Raise InvalidInputError if a name cannot be that of a principal with keys."""
    check_name(name, "principal's name")
    if name in RESERVED_NAMES:
        raise InvalidInputError(
            f"'{name}' is reserved in audit records, for callers without a name or the server: choose another."
        )
    if PROVIDER_SEPARATOR in name:
        raise InvalidInputError(
            f"'{name}' is a name of a provider's principal: authenticate it by the provider's tokens, not by keys."
        )


def _check_options(options: NewKeyOptions, clock: Clock) -> None:
    if len(options.note) > MAX_NOTE_LENGTH:
        raise InvalidInputError(f"The note has {len(options.note)} characters: {MAX_NOTE_LENGTH} at most.")
    if options.expires_at is not None and options.expires_at <= clock():
        raise InvalidInputError("The key would expire at once: let it expire later.")


def _add_key(catalog: UnitOfWork, principal: str, options: NewKeyOptions) -> CreatedKey:
    id_, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    record = catalog.add_key(id_, principal, _hash(secret), options.note, options.expires_at)
    return CreatedKey(f"{PREFIX}_{id_}_{secret}", record)


def _parse_key(text: bytes) -> tuple[str, str] | None:
    """Return the id and the secret of a key; None if the text has not the form of one."""
    parts = text.decode("ascii", "replace").split("_", 2)
    if len(parts) != 3 or parts[0] != PREFIX or len(parts[1]) != 2 * ID_BYTES:
        return None
    return parts[1], parts[2]


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
