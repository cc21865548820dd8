"""Texts that are shown to people: cut where they are long."""

from __future__ import annotations


def shorten(text: str, most: int) -> str:
    """Return a text, of which no more than `most` characters are left; an ellipsis stands for others."""
    return text if len(text) <= most else f"{text[:most]}…"
