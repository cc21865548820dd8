"""What a server says and refuses at its start, so that nobody serves everybody without knowing it."""

from __future__ import annotations

import ipaddress
import logging
import sys
from collections.abc import Callable
from typing import NoReturn

from tiltyard.config import Settings
from tiltyard.context import Services
from tiltyard.identity.keys import FIRST_NAME, first_key

Refuse = Callable[[str], NoReturn]

log = logging.getLogger("tiltyard")


def require_safe(settings: Settings, address: str, refuse: Refuse) -> None:
    """Refuse to serve strangers on an address that others can reach, unless told to."""
    if not (settings.auth or settings.insecure or ipaddress.ip_address(address).is_loopback):
        refuse(
            f"Others can reach {address}, and this server would let in everybody: ask them who they are with --auth, "
            "or say --insecure."
        )


def greet(services: Services, address: str) -> None:
    """Say loudly that everybody is let in; or print the first key, once, on standard output, which is no log."""
    if not services.settings.auth:
        log.warning("EVERYBODY WHO REACHES %s IS AN ADMINISTRATOR HERE: start with --auth to change that.", address)
        return
    key = first_key(services.store)
    if key is not None:
        print(f"The key of '{FIRST_NAME}', shown this once: {key}", file=sys.stdout, flush=True)
