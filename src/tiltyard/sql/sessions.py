"""Sessions of DataFusion, each with a memory pool and a spill folder of its own, and for one query at a time."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ThrottlingError, UnsupportedOperationError

from tiltyard.runtime.owned_folders import OwnedFolder
from tiltyard.sql.tables import CATALOG, DEFAULT_SCHEMA, SessionCatalog

if TYPE_CHECKING:
    from tiltyard.config import Settings

MISSING = "This server has no SQL: install it with its extra, `pip install 'tiltyard[sql]'`."

MAX_NESTING = 150
"""Levels of brackets and calls in a text: three times what a statement has of its own, for those around its sums."""

_THREADS = "TOKIO_WORKER_THREADS"
_importing = threading.Lock()


class Session:
    """A session: `context` is DataFusion's, `catalog` names the tables of its current query, `functions` its functions.

    DataFusion removes its folder inside `folder` once nothing of the session runs any more.
    """

    def __init__(self, settings: Settings, parent: Path) -> None:
        """Open a session that spills below `parent`. Raises UnsupportedOperationError without DataFusion."""
        import_datafusion(settings.sql_queries)
        from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext

        from tiltyard.sql.session_functions import SessionFunctions
        from tiltyard.sql.table_functions import register_table_functions

        config = (
            SessionConfig(
                {
                    "datafusion.execution.enable_recursive_ctes": "false",
                    "datafusion.sql_parser.recursion_limit": str(MAX_NESTING),
                }
            )
            .with_create_default_catalog_and_schema(False)
            .with_default_catalog_and_schema(CATALOG, DEFAULT_SCHEMA)
            .with_information_schema(False)
        )
        runtime = RuntimeEnvBuilder().with_fair_spill_pool(settings.sql_memory_bytes)
        context: Any = SessionContext(config, runtime)  # not typed: its catalogs are any that have the methods
        self.context = context
        self.folder = Path(mkdtemp(dir=parent))
        quoted = str(self.folder).replace("'", "''")
        for name, value in (
            ("max_temp_directory_size", f"{settings.sql_spill_bytes >> 20}M"),
            ("temp_directory", quoted),  # the last one: the others lose it
        ):
            context.sql(f"SET datafusion.runtime.{name} = '{value}'")
        self.catalog = SessionCatalog()
        self.context.register_catalog_provider(CATALOG, self.catalog)
        self.functions = SessionFunctions(context)
        register_table_functions(self.context, self.catalog)


def import_datafusion(queries: int) -> None:
    """Import DataFusion, whose threads are made now: so many that `queries` of them cannot take all.

    It has as many threads as processors, and a join or a sort holds one for as long as a batch of its input takes,
    which may be minutes: two such queries would stop all others. Raises UnsupportedOperationError.
    """
    threads = (os.cpu_count() or 1) * (queries + 1)
    with _importing:
        if "datafusion" in sys.modules:
            return
        os.environ.setdefault(_THREADS, str(threads))
        try:
            import datafusion
        except ImportError as error:
            raise UnsupportedOperationError(MISSING) from error
        datafusion.SessionContext().sql("SELECT 1").collect()


class SqlSessions:
    """The sessions of one process. Thread-safe.

    To make a session takes as long as a point query, so those of queries that succeeded are used again. One of a query
    that was cancelled counts as running until nothing of it runs any more, which takes DataFusion until the end of a
    batch: however often a caller cancels queries, there are not more of them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._active = 0
        self._ending: list[Path] = []
        self._folder: OwnedFolder | None = None

    @property
    def running(self) -> int:
        """How many queries run, with those that were cancelled and have not ended yet."""
        with self._lock:
            return self._count()

    def acquire(self) -> Session:
        """Return a session. Raises ThrottlingError if as many queries run as may, UnsupportedOperationError."""
        with self._lock:
            if (running := self._count()) >= self._settings.sql_queries:
                raise ThrottlingError(f"{running} SQL queries run already: try again in a moment.")
            self._active += 1
            session = self._idle.pop() if self._idle else None
        if session is None:
            try:
                session = Session(self._settings, self._parent())
            except BaseException:
                with self._lock:
                    self._active -= 1
                raise
        return session

    def release(self, session: Session, *, is_reusable: bool, has_failed: bool = False) -> None:
        """Return a session; it is used again if nothing of its query runs any more.

        That of a query that failed is not, and does not count any longer: DataFusion has ended it.
        """
        if session.catalog.tables is not None:
            session.catalog.tables.close()
            session.catalog.tables = None
        with self._lock:
            self._active -= 1
            if is_reusable:
                self._idle.append(session)
            elif not has_failed:
                self._ending.append(session.folder)

    def close(self) -> None:
        """Remove the folders of all sessions."""
        with self._lock:
            for folder in (*self._ending, *(session.folder for session in self._idle)):
                shutil.rmtree(folder, ignore_errors=True)
            if self._folder is not None:
                self._folder.remove()

    def _parent(self) -> Path:
        """Return the folder that sessions have theirs in, which goes with this process."""
        with self._lock:
            if self._folder is None:
                self._folder = OwnedFolder("tiltyard-sql-", self._settings.sql_spill_folder or None)
            return self._folder.path

    def _count(self) -> int:
        self._ending = [folder for folder in self._ending if not _remove_if_empty(folder)]
        return self._active + len(self._ending)


def _remove_if_empty(folder: Path) -> bool:
    """Remove a folder that DataFusion has removed its own from; return whether it is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # not empty
        return False
    return True
