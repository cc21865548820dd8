"""Fields of Arrow: their metadata as text, where Arrow has bytes, and the fields in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


def metadata_texts(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return metadata of text or bytes as text; what is no UTF-8 is replaced by U+FFFD."""
    return {_text(key): _text(value) for key, value in (metadata or {}).items()}


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def fields_in(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly in a type; none of an extension, whose storage has them."""
    return [kind.field(at) for at in range(kind.num_fields)]
