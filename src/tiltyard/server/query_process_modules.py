"""All that a process needs to run queries: imported once, by the process that the others are forked from.

Nothing here may start a thread: a fork has only the thread that forked.
"""

from __future__ import annotations

from contextlib import suppress

from tiltyard.runtime.lazy_imports import import_lazily

import_lazily()  # before anything imports pyarrow and lance_namespace

import tiltyard.server.query_process  # noqa: E402
import tiltyard.sql.planning  # noqa: E402
import tiltyard.sql.table_functions  # noqa: E402
import tiltyard.storage.objects  # noqa: E402, F401
from tiltyard.bootstrap import register_operations  # noqa: E402

register_operations()
with suppress(ImportError):  # a query says that it is missing
    import datafusion  # noqa: F401
