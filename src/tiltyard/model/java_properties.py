"""Files of properties, as Java reads them."""

from __future__ import annotations

from collections.abc import Mapping


def properties_text(properties: Mapping[str, str]) -> str:
    """Return properties as a file of Java's, of ASCII alone."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be")
    codes = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)
