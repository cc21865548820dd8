"""Assemble a process: register all operations, and open its services from the settings."""

from __future__ import annotations

import importlib
import os
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

import tiltyard.catalog
import tiltyard.identity
import tiltyard.tables
from tiltyard.access.rights import RightsCache
from tiltyard.catalog.mounts.mounts import make_mounts
from tiltyard.config import ConfigError, Settings
from tiltyard.context import Context, Services
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

if TYPE_CHECKING:
    from tiltyard.model.operations import ArrowAnswer

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
    storage.datasets.has_shared_base = store.may_share_files
    mounts = Mounts(store, storage.roots.check_foreign)
    try:
        if not database_alone:
            make_mounts(mounts, store, settings)
    except LanceNamespaceError as error:
        raise ConfigError(f"The mounts of the settings cannot be made: {error}") from error
    storage.vended_credentials = mounts.server_credentials
    paging = Paging(store.shared_secret("paging"), settings.max_page_size)
    return Services(
        settings=settings,
        store=store,
        storage=storage,
        mounts=mounts,
        paging=paging,
        clock=store.clock,
        rights_cache=RightsCache(store),
        commit_log=CommitLog(storage.settle_manifests, store.mark_finalized, store.note_changes),
        known_tables=KnownTables(),
        outage_log=OutageLog(storage.roots.locations, database),
        finalizing_backoff=FinalizingBackoff(),
        secret_keys=secret_keys,
        sql_sessions=SqlSessions(settings),
        query_memory=MemoryBudget(settings.query_memory_bytes),
        started_at=store.clock(),
        commit_routing=commit_route,
    )


def run_sql(ctx: Context, text: str) -> ArrowAnswer:
    """Run a query over the tables of the catalog, as the context's principal. Raises as `sql.engine.run` does."""
    from tiltyard.sql.engine import run  # noqa: PLC0415  # an extra: DataFusion

    return run(ctx, text)
