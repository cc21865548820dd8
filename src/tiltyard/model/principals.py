"""Principals: the authenticated callers that grants, policies, credentials and the audit log refer to."""

from __future__ import annotations

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller.

    `name` is unique on a server; `groups` come from a token's claim; `method` is how the caller authenticated ("open"
    on a server without authentication). An `administrator` has all privileges.
    """

    name: str
    groups: tuple[str, ...] = ()
    method: str = "open"
    administrator: bool = False


EVERYBODY = Principal("everybody", administrator=True)
"""The principal of all callers of a server without authentication."""

OPERATOR = Principal("operator", method="command line", administrator=True)
"""The principal of commands that open the catalog's database themselves; a principal with keys may have its name."""

SERVER = Principal("tiltyard", method="server", administrator=True)
"""The server itself: its sweeps, and jobs that no caller has submitted."""
