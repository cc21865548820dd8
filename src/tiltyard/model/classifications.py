"""Classifications: a key and a value that say what a namespace, a table or a column holds (`pii=email`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.model.schemas.fields import fields_in, metadata_texts

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_PREFIX = "tiltyard.classification."
"""How keys of Arrow's field metadata begin that classify a new column: `tiltyard.classification.pii`."""
MAX_KEY_CHARS = 64
"""Characters of a key."""
MAX_VALUE_CHARS = 256
"""Characters of a value."""
_KEY = re.compile(r"[a-z][a-z0-9_.-]*")


class ClassifiedKind(StrEnum):
    """What is classified."""

    NAMESPACE = "namespace"
    TABLE = "table"
    COLUMN = "column"


def check_key(key: str) -> str:
    """Return the key if it can be one. Raises InvalidInputError."""
    if len(key) > MAX_KEY_CHARS or not _KEY.fullmatch(key):
        raise InvalidInputError(
            f"'{key[:MAX_KEY_CHARS]}' is no key of a classification: it begins with a small letter of a to z, and has "
            f"up to {MAX_KEY_CHARS} of these, digits, '_', '.' and '-'."
        )
    return key


def check_value(value: str) -> str:
    """Return the value if it can be one; it may be empty. Raises InvalidInputError."""
    if len(value) > MAX_VALUE_CHARS or not value.isprintable() or value != value.strip():
        raise InvalidInputError(
            f"A value of a classification has up to {MAX_VALUE_CHARS} printable characters, and no space around."
        )
    return value


def parse_classification(text: str) -> tuple[str, str]:
    """Parse `key=value`, or a key alone, into both. Raises InvalidInputError."""
    key, _, value = text.partition("=")
    return check_key(key.strip()), check_value(value.strip())


def format_classification(key: str, value: str) -> str:
    """Format a key and a value as people write them."""
    return f"{key}={value}" if value else key


def field_classifications(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return what a field's metadata, of text or bytes, classifies its column as. Raises InvalidInputError."""
    return {
        check_key(key.removeprefix(METADATA_PREFIX)): check_value(value)
        for key, value in metadata_texts(metadata).items()
        if key.startswith(METADATA_PREFIX)
    }


def is_classified(fields: Iterable[pa.Field]) -> bool:
    """Return whether the metadata of a field, or of one in it, classifies it.

    Raises InvalidInputError for a key or a value that cannot be one.
    """
    return any(field_classifications(field.metadata) or is_classified(fields_in(field.type)) for field in list(fields))
