"""The keys of the setting `secret_keys`, which encrypt the values of secrets in the catalog (AES-256-GCM).

The first key encrypts, all of them decrypt: a new key is put in front, `tiltyard db reencrypt-secrets` encrypts all
values with it, and then the old one can go. A value is bound to its secret: moved to another row it does not decrypt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiltyard.model.settings.storages import SecretError, is_reference, read_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
_CONTEXT = b"tiltyard secret 1\0"
_OWNER = "The setting secret_keys"


class DecryptionError(Exception):
    """A value that none of the keys decrypts: its key is missing, or it was changed."""


@dataclass(frozen=True, slots=True)
class EncryptedValue:
    """An encrypted value, and the id of the key that encrypted it; `data` is the nonce and the ciphertext."""

    key_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SecretKeys:
    """Keys of 32 bytes by their ids, the encrypting one first; `repr` shows none of them."""

    values: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def first_id(self) -> str | None:
        """The id of the key that encrypts; None where no key is set."""
        return next(iter(self.values), None)

    def encrypt(self, value: str, owner: bytes) -> EncryptedValue:
        """Encrypt a value for its `owner`, which has to be the same when it is decrypted. There has to be a key."""
        key_id = self.first_id
        assert key_id is not None
        nonce = os.urandom(NONCE_BYTES)
        return EncryptedValue(key_id, nonce + _cipher(self.values[key_id]).encrypt(nonce, value.encode(), _bind(owner)))

    def decrypt(self, value: EncryptedValue, owner: bytes) -> str:
        """Decrypt a value of this `owner`. Raises DecryptionError."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - it is slow to import, and seldom needed

        key = self.values.get(value.key_id)
        if key is None:
            raise DecryptionError(f"it was encrypted with the key {value.key_id}, which secret_keys does not have")
        nonce, ciphertext = value.data[:NONCE_BYTES], value.data[NONCE_BYTES:]
        try:
            return _cipher(key).decrypt(nonce, ciphertext, _bind(owner)).decode()
        except (InvalidTag, ValueError) as error:
            raise DecryptionError("it is damaged, or was that of another secret") from error


def read_secret_keys(references: Sequence[str]) -> SecretKeys:
    """Read the keys that the setting refers to, each 32 bytes in base64. Raises SecretError."""
    keys: dict[str, bytes] = {}
    for reference in references:
        if not is_reference(reference):
            raise SecretError(f"{_OWNER} has a key in plain text: write env:NAME or file:PATH.")
        key = _decode(reference, read_secret(_OWNER, reference))
        keys[hashlib.sha256(_CONTEXT + key).hexdigest()[:16]] = key
    return SecretKeys(keys)


def _decode(reference: str, text: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise SecretError(f"{_OWNER}: {reference} has to hold {KEY_BYTES} random bytes in base64.")
    return key


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - likewise

    return AESGCM(key)


def _bind(owner: bytes) -> bytes:
    """Return the associated data of a value: no value of another use of the key can take its place."""
    return _CONTEXT + owner
