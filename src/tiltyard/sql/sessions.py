"""Sessions of DataFusion, each with a memory pool and a spill folder of its own, and for one query at a time.

Queries may call functions that were reviewed; a session has of these in each query the ones that it names.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ThrottlingError

from tiltyard.runtime.owned_folders import OwnedFolder
from tiltyard.sql.dialects.json_functions import JSON_FUNCTIONS
from tiltyard.sql.dialects.text_functions import TEXT_FUNCTIONS
from tiltyard.sql.dialects.translation import SPECIAL
from tiltyard.sql.dialects.words import RENAMED, TRANSLATIONS
from tiltyard.sql.tables import CATALOG, DEFAULT_SCHEMA, SessionCatalog
from tiltyard.tables.lance_sql.allowed_functions import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from datafusion import SessionContext

    from tiltyard.config import Settings

_AGGREGATES = frozenset(
    """
    approx_distinct approx_median approx_percentile_cont approx_percentile_cont_with_weight array_agg avg bit_and bit_or
    bit_xor bool_and bool_or corr count covar covar_pop covar_samp first_value grouping last_value max mean median min
    nth_value percentile_cont quantile_cont regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
    regr_sxy regr_syy stddev stddev_pop stddev_samp string_agg sum var var_pop var_population var_samp var_sample
    """.split()  # noqa: SIM905
)
_WINDOWS = frozenset(
    "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number".split()  # noqa: SIM905
)
_CALLED = re.compile(r"([a-z]\w*)\(")
_OF_LANCE_ALONE = re.compile(r"st_|json_|mod$|contains_tokens$")
"""Reviewed functions that DataFusion has not."""
_TABLE_FUNCTIONS = frozenset({"generate_series", "range"})
"""DataFusion's own, which are endless where their caller says so."""
_IMPLIED = frozenset(
    """
    array_agg array_element array_has array_slice avg btrim coalesce count date_part first_value get_field last_value
    ltrim make_array max min named_struct overlay row_number rtrim strpos substr sum
    """.split()  # noqa: SIM905
)
"""Functions that DataFusion looks up for syntax, such as `TRIM(LEADING …)`, `DISTINCT ON` and `FULL JOIN … USING`."""


class SessionFunctions:
    """The functions of one session.

    They are DataFusion's, and our own (`tiltyard.sql.dialects`). None of those that were reviewed reads a file,
    the network or the settings; what they may make of a row is estimated from the statement. A query with any other
    cannot be planned.

    A session has those alone that its statement names. Lance is handed all functions of the session with each scan,
    several times: 300 of them are 3 of the 8 ms of processor time that a point query takes.
    """

    def __init__(self, context: SessionContext) -> None:
        """Take all functions from a session."""
        kinds: tuple[tuple[Any, ...], ...] = (
            (context.udfs, FUNCTIONS, context.udf, context.register_udf, context.deregister_udf),
            (context.udafs, _AGGREGATES, context.udaf, context.register_udaf, context.deregister_udaf),
            (context.udwfs, _WINDOWS, context.udwf, context.register_udwf, context.deregister_udwf),
        )
        self._registrations: dict[str, list[Callable[[], None]]] = {}
        self._removals: list[Callable[[str], None]] = []
        self._registered: set[str] = set()
        for names, reviewed, find, register, deregister in kinds:
            for name in reviewed.intersection(names()):
                self._registrations.setdefault(name, []).append(partial(register, find(name)))
            for name in set(names()):
                deregister(name)
            self._removals.append(deregister)
        for function in (*JSON_FUNCTIONS, *TEXT_FUNCTIONS):
            self._registrations[function.name] = [partial(context.register_udf, function.to_udf())]
        for name in _TABLE_FUNCTIONS:
            context.deregister_udtf(name)

    def select(self, names: Collection[str]) -> None:
        """Register the functions that a statement with these names may call, and no others."""
        wanted = self._registrations.keys() & (_IMPLIED | set(names))
        for name in self._registered - wanted:
            for remove in self._removals:
                remove(name)
        for name in wanted:  # again, also: what was removed may have had the same function by another name
            for register in self._registrations[name]:
                register()
        self._registered = wanted

    def add(self, plan: Any) -> bool:
        """Register the functions that a plan calls besides, for its operators: return whether there are any.

        Then the statement has to be planned again. A filter that calls a function that its session has not, as `struct`
        of `(a, b) = (1, 2)`, ends the process when Lance is handed it.
        """
        missing = self._registrations.keys() & set(_CALLED.findall(plan.display_indent())) - self._registered
        self._registered = self._registered | missing
        for name in missing:
            for register in self._registrations[name]:
                register()
        return bool(missing)


def function_names() -> list[str]:
    """Return the functions that a query may call, without those of tables: what an editor suggests."""
    of_datafusion = {name for name in FUNCTIONS | _AGGREGATES | _WINDOWS if not _OF_LANCE_ALONE.match(name)}
    own = {function.name for function in (*JSON_FUNCTIONS, *TEXT_FUNCTIONS)}
    return sorted(of_datafusion | own | TRANSLATIONS.keys() | RENAMED.keys() | SPECIAL)


MAX_NESTING = 150
"""Levels of brackets and calls in a text: three times what a statement has of its own, for those around its sums."""

_THREADS = "TOKIO_WORKER_THREADS"
_importing = threading.Lock()


class Session:
    """A session: `context` is DataFusion's, `catalog` names the tables of its current query, `functions` its functions.

    DataFusion removes its folder inside `folder` once nothing of the session runs any more.
    """

    def __init__(self, settings: Settings, parent: Path) -> None:
        """Open a session that spills below `parent`."""
        import_datafusion(settings.sql_queries)
        from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext

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
    which may be minutes: two such queries would stop all others.
    """
    threads = (os.cpu_count() or 1) * (queries + 1)
    with _importing:
        if "datafusion" in sys.modules:
            return
        os.environ.setdefault(_THREADS, str(threads))
        import datafusion

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
        """Return a session. Raises ThrottlingError if as many queries run as may."""
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
