"""Who asks: the one type that identity makes, and that grants, filters, credentials and the audit read."""

from __future__ import annotations

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """Somebody who was authenticated.

    `name` is unique on a server; `groups` come from a token's claim; `method` says how the principal showed itself
    ("open" where a server asks nobody). An `administrator` may do everything.
    """

    name: str
    groups: tuple[str, ...] = ()
    method: str = "open"
    administrator: bool = False


EVERYBODY = Principal("everybody", administrator=True)
"""Whoever calls a server that was started without authentication."""

SERVER = Principal("tiltyard", method="server", administrator=True)
"""The server itself: its sweeps, and jobs that nobody asked for."""
