"""Sessions of DataFusion, each with a memory pool and a spill folder of its own, and for one query at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ThrottlingError, UnsupportedOperationError

from tiltyard.sql.tables import CATALOG, DEFAULT_SCHEMA, SessionCatalog

if TYPE_CHECKING:
    from tiltyard.config import Settings

MISSING = "This server has no SQL: install it with its extra, `pip install 'tiltyard[sql]'`."


class Session:
    """A session: `context` is DataFusion's, `catalog` names the tables of its current query."""

    def __init__(self, settings: Settings) -> None:
        """Open a session. Raises UnsupportedOperationError where DataFusion is not installed."""
        try:
            from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext
        except ImportError as error:
            raise UnsupportedOperationError(MISSING) from error
        from tiltyard.sql.plans import remove_other_functions
        from tiltyard.sql.table_functions import register_table_functions

        config = (
            SessionConfig({"datafusion.execution.enable_recursive_ctes": "false"})
            .with_create_default_catalog_and_schema(False)
            .with_default_catalog_and_schema(CATALOG, DEFAULT_SCHEMA)
            .with_information_schema(False)
        )
        runtime = RuntimeEnvBuilder().with_fair_spill_pool(settings.sql_memory_bytes)
        if not settings.sql_spill_bytes:
            runtime = runtime.with_disk_manager_disabled()
        elif settings.sql_spill_folder:
            runtime = runtime.with_disk_manager_specified(settings.sql_spill_folder)
        context: Any = SessionContext(config, runtime)  # not typed: its catalogs are any that have the methods
        self.context = context
        if settings.sql_spill_bytes:
            self.context.sql(f"SET datafusion.runtime.max_temp_directory_size = '{settings.sql_spill_bytes >> 20}M'")
        self.catalog = SessionCatalog()
        self.context.register_catalog_provider(CATALOG, self.catalog)
        remove_other_functions(self.context)
        register_table_functions(self.context, self.catalog)


class SqlSessions:
    """The sessions of one process. Thread-safe.

    To make a session takes as long as a point query, so those of queries that succeeded are used again.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self.running = 0

    def acquire(self) -> Session:
        """Return a session. Raises ThrottlingError if as many queries run as may, UnsupportedOperationError."""
        with self._lock:
            if self.running >= self._settings.sql_queries:
                raise ThrottlingError(f"{self.running} SQL queries run already: try again in a moment.")
            self.running += 1
            session = self._idle.pop() if self._idle else None
        if session is None:
            try:
                session = Session(self._settings)
            except BaseException:
                self.release(None)
                raise
        return session

    def release(self, session: Session | None) -> None:
        """Return a session; None instead of one that must not be used again."""
        if session is not None:
            session.catalog.tables = None
        with self._lock:
            self.running -= 1
            if session is not None:
                self._idle.append(session)
