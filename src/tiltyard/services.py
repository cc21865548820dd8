"""Putting a process together: settings → store, storage → services."""

from __future__ import annotations

from tiltyard.access import Access
from tiltyard.clocks import wall_clock
from tiltyard.config import ConfigError, Settings
from tiltyard.context import Services
from tiltyard.outages import Outages
from tiltyard.paging import Paging
from tiltyard.storage import Storage
from tiltyard.store import open_store
from tiltyard.tables.finished import Finished
from tiltyard.tables.known import KnownTables
from tiltyard.tables.own_commits import road
from tiltyard.tables.retries import Retries


def open_services(settings: Settings) -> Services:
    """Everything a server or a worker needs; the database is migrated if it is older than the code.

    Raises StorageError, StoreVersionError, ServiceUnavailableError, ConfigError: each one sentence for the operator.
    """
    database = settings.database_url
    storage = Storage(settings, wall_clock)
    storage.prepare()
    try:
        store = open_store(database, clock=wall_clock)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    storage.datasets.shares = store.shares
    paging = Paging(store.secret("paging"), settings.max_page_size)
    finished = Finished(storage.sync, store.mark_final)
    outages = Outages(storage.places.roots, database)
    known, retries = KnownTables(), Retries()
    return Services(
        settings, store, storage, paging, wall_clock, Access(store), finished, known, outages, retries, road
    )
