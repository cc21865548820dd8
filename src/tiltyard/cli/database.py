"""The catalog's database, for commands that go straight to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lance_namespace.errors import LanceNamespaceError

from tiltyard.config import ConfigError, Settings
from tiltyard.runtime.fatal import Refuse
from tiltyard.store import Store, StoreVersionError, open_store


@contextmanager
def opened(settings: Settings, refuse: Refuse) -> Iterator[Store]:
    """The catalog's database; what goes wrong with it, or is asked of it, is one sentence to the operator."""
    try:
        with open_store(settings.database_url) as store:
            yield store
    except (LanceNamespaceError, StoreVersionError, ConfigError, ValueError) as error:
        refuse(str(error))
