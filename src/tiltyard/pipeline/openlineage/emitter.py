"""Send OpenLineage events: to a file or an HTTP endpoint, once a process is told where. Off by default.

Nothing here fails a job: an event that cannot be made or sent is a line in the log, and the next ones are not tried
for a minute.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError

from tiltyard.model.settings.openlineage import OpenLineageSettings
from tiltyard.model.settings.storages import SecretError

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import CatalogConnection

log = logging.getLogger("tiltyard.pipeline")

MISSING = "OpenLineage events need a further package: pip install 'tiltyard[openlineage]'."
SEND_SECONDS = 5.0
PAUSE_SECONDS = 60.0
"""For how long no event is sent after one that could not be."""


@dataclass(slots=True)
class Emitter:
    """Sends the events of this process. Thread-safe."""

    settings: OpenLineageSettings
    clock: Callable[[], float] = time.monotonic
    _transport: Any = field(init=False, default=None)
    _paused_until: float = field(init=False, default=0.0)
    _has_warned: bool = field(init=False, default=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def emit(self, make_event: Callable[[], RunEvent]) -> None:
        """Make an event and send it. Never raises."""
        if self.clock() < self._paused_until:
            return
        try:
            event = make_event()
            with self._lock:
                if self._transport is None:
                    self._transport = open_transport(self.settings)
                self._transport.emit(event)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with an event, the job goes on
            self._paused_until = self.clock() + PAUSE_SECONDS
            if not self._has_warned:
                self._has_warned = True
                reason = MISSING if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
                log.warning("OpenLineage events are not sent, and jobs go on without: %s", reason)
        else:
            self._has_warned = False


def open_transport(settings: OpenLineageSettings) -> Any:
    """Return the transport of OpenLineage's client to the place that the settings name. Raises ImportError."""
    if settings.is_http:
        from openlineage.client.transport.http import (  # noqa: PLC0415  # an extra
            ApiKeyTokenProvider,
            HttpConfig,
            HttpTransport,
        )

        parts = urlsplit(settings.url)
        base, endpoint = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
        where: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        if settings.key:
            where["auth"] = ApiKeyTokenProvider({"api_key": settings.key})
        return HttpTransport(HttpConfig(url=base, timeout=SEND_SECONDS, retry={"total": 0}, **where))
    from openlineage.client.transport.file import FileConfig, FileTransport  # noqa: PLC0415  # an extra

    return FileTransport(FileConfig(log_file_path=settings.url.removeprefix("file://"), append=True))


_lock = threading.Lock()
_emitter: Emitter | None = None
_is_configured = False


def configure(settings: OpenLineageSettings | None) -> None:
    """Say where this process sends events; nowhere for None."""
    global _emitter, _is_configured  # one of the process, as its log is
    with _lock:
        _emitter, _is_configured = None if settings is None else Emitter(settings), True


def observe(
    kind: str,
    run: Run,
    catalog: CatalogConnection,
    arguments: Mapping[str, Any],
    work: Callable[[Any], Mapping[str, object]],
) -> Mapping[str, object]:
    """Run `work(run)` with the events of a job's run, if they are on; return the figures. Raises what it raises."""
    emitter = current_emitter()
    if emitter is None:
        return work(run)
    from tiltyard.pipeline.openlineage.observer import observe_run  # noqa: PLC0415  # events are off in most processes

    return observe_run(emitter, kind, run, catalog, arguments, work)


def current_emitter() -> Emitter | None:
    """Return the emitter of this process, which its environment configures where `configure` did not; None without.

    Raises InvalidInputError for variables that are no settings.
    """
    if not _is_configured:
        try:
            configure(OpenLineageSettings.from_environment(os.environ))
        except SecretError as error:
            raise InvalidInputError(str(error)) from error
    return _emitter
