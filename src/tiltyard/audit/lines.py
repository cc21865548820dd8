"""Audit records as lines of JSON, in a file or on standard error."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from tiltyard.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.model.spec import models

log = logging.getLogger("tiltyard.audit")

STDERR = "stderr"
_ENCODER = msgspec.json.Encoder()


class Lines:
    """Appends to a file, which may be moved away at any time (logrotate), and which several processes may share."""

    name = "lines"

    def __init__(self, target: str) -> None:
        """Look whether the file can be written. Raises ConfigError."""
        self._lost = 0
        self._target = target
        if target != STDERR:
            try:
                os.close(self._open())
            except OSError as error:
                raise ConfigError(f"The audit's file {target} cannot be written: {error.strerror}.") from error

    def take(self, entries: Sequence[models.AuditEntry]) -> None:
        """See Sink. One write for all of them, so that lines of several processes do not mix."""
        lines = _ENCODER.encode_lines(entries)
        try:
            if self._target == STDERR:
                sys.stderr.write(lines.decode())
                sys.stderr.flush()
                return
            file = self._open()
            try:
                _write(file, lines)
            finally:
                os.close(file)
        except OSError as error:
            self._lost += len(entries)
            log.error("%d audit records are not in %s: %s", len(entries), self._target, error)  # noqa: TRY400 - no trace

    def lost(self) -> int:
        """See Sink."""
        return self._lost

    def close(self) -> None:
        """See Sink. Nothing is held back."""

    def _open(self) -> int:
        return os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _write(file: int, lines: bytes) -> None:
    while lines:
        lines = lines[os.write(file, lines) :]
