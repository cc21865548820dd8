"""Assemble a process: register all operations, and open its services from the settings."""

from __future__ import annotations

import importlib
import os
import pkgutil
from functools import cache, partial
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError
from msgspec import structs

import tiltyard.catalog
import tiltyard.identity
import tiltyard.tables
from tiltyard.access.protections import ProtectionChecks
from tiltyard.access.quotas import QuotaChecks
from tiltyard.access.rights import RightsCache
from tiltyard.catalog.mounts.mounts import make_mounts
from tiltyard.catalog.table_servers import TableServers
from tiltyard.config import ConfigError, Settings
from tiltyard.context import Context, Services
from tiltyard.events.filters import EventFilter
from tiltyard.model.decisions import AskedOperation
from tiltyard.model.paging import Paging
from tiltyard.model.settings.openlineage import read_key
from tiltyard.model.settings.secret_keys import read_secret_keys
from tiltyard.model.settings.storages import SecretError
from tiltyard.mounts.registry.mounts import Mounts
from tiltyard.runtime.budgets import MemoryBudget
from tiltyard.runtime.outage_log import OutageLog
from tiltyard.runtime.process import wall_clock
from tiltyard.sql.sessions import SqlSessions
from tiltyard.storage import Storage, StorageError
from tiltyard.store import StoreVersionError, open_store
from tiltyard.tables.commits.commit_handler import commit_route
from tiltyard.tables.commits.process_state import CommitLog, FinalizingBackoff, KnownTables
from tiltyard.tables.commits.written_rows import read_written_rows

if TYPE_CHECKING:
    from tiltyard.access.decisions.decisions import Decisions
    from tiltyard.model.operations import ArrowAnswer
    from tiltyard.store import Store

STARTUP_ERRORS = (StorageError, StoreVersionError, ConfigError, LanceNamespaceError, ValueError)
"""What `open_services` raises: each one sentence for the operator."""


@cache
def register_operations() -> None:
    """Import every module of `catalog`, `tables` and `identity`, whose decorators register operations and jobs."""
    for package in (tiltyard.catalog, tiltyard.tables, tiltyard.identity):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def open_services(settings: Settings, *, database_alone: bool = False) -> Services:
    """Open the services of a process, whose operations are registered; `Services.close` closes all of them.

    The database is migrated if it is older than the code.
    For operations that need the `database_alone`, the storage is not tried, and the mounts of the settings not made.
    Raises STARTUP_ERRORS.
    """
    register_operations()
    database = settings.database_url
    try:
        secret_keys = read_secret_keys(settings.secret_keys)
        read_key(settings.openlineage_key, os.environ)  # drivers of jobs get it
    except SecretError as error:
        raise ConfigError(str(error)) from error
    storage = Storage(settings, wall_clock)
    if not database_alone:
        storage.prepare()
    try:
        store = open_store(database, connections=settings.db_connections)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if settings.events or settings.all_event_sinks:
        _record_events(store, settings)
    storage.datasets.has_shared_base = store.may_share_files
    storage.datasets.share_out(store.find_tenants)
    mounts = Mounts(store, storage.roots.check_foreign)
    try:
        if not database_alone:
            make_mounts(mounts, store, settings)
    except LanceNamespaceError as error:
        raise ConfigError(f"The mounts of the settings cannot be made: {error}") from error
    storage.vended_credentials = mounts.server_credentials
    rights_cache = RightsCache(store)
    paging = Paging(store.shared_secret("paging"), settings.max_page_size)
    return Services(
        settings=settings,
        store=store,
        storage=storage,
        mounts=mounts,
        paging=paging,
        clock=store.clock,
        rights_cache=rights_cache,
        protections=ProtectionChecks(store),
        quotas=QuotaChecks(store, partial(read_written_rows, storage)),
        commit_log=CommitLog(storage.settle_manifests, store.mark_finalized, store.note_changes),
        known_tables=KnownTables(),
        outage_log=OutageLog(storage.roots.locations, database),
        finalizing_backoff=FinalizingBackoff(),
        secret_keys=secret_keys,
        sql_sessions=SqlSessions(settings),
        query_memory=MemoryBudget(settings.query_memory_bytes),
        started_at=store.clock(),
        commit_routing=commit_route,
        decisions=_open_decisions(settings, rights_cache) if settings.decisions else None,
        table_servers=TableServers(store.list_processes, store.clock, url) if (url := settings.server_url) else None,
    )


def _open_decisions(settings: Settings, rights: RightsCache) -> Decisions:
    """Return what asks the services of the settings. Raises ConfigError."""
    from tiltyard.access.decisions.decisions import open_decisions  # noqa: PLC0415  # a client of HTTP, for few servers

    return open_decisions(settings, rights)


def _record_events(store: Store, settings: Settings) -> None:
    """Let changes of the catalog be recorded from now on, and note from where on the sinks of the settings get them."""
    sinks = settings.all_event_sinks
    has_calls = any(EventFilter(sink.types, sink.object).has_calls for sink in sinks.values())
    store.start_recording(sorted(sinks), has_calls=has_calls)


def run_sql(ctx: Context, text: str) -> ArrowAnswer:
    """Run a query over the tables of the catalog, as the context's principal. Raises as `sql.engine.run` does."""
    from tiltyard.sql.engine import run  # noqa: PLC0415  # an extra: DataFusion
    from tiltyard.sql.remote_query import EXECUTE  # noqa: PLC0415  # as above

    return run(structs.replace(ctx, asked=AskedOperation(EXECUTE)), text)
