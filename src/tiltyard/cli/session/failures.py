"""How a command ends that fails: one sentence on standard error, and a status that a program can tell apart."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from lance_namespace.errors import LanceNamespaceError

_NOT_FOUND = frozenset({1, 4, 6, 8, 10, 11, 12, 22})
"""The specification's codes of what does not exist."""
_NAMESPACE_NOT_FOUND, _TABLE_NOT_FOUND = 1, 4
_NOT_ALLOWED = frozenset({15, 16})
_UNAVAILABLE = frozenset({17, 21})
_CODES_OF_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class ExitStatus(IntEnum):
    """The exit statuses of the commands for people."""

    FAILED = 1
    """The request was refused, or failed."""
    USAGE = 2
    """The command was not typed as it has to be."""
    NOT_WELL = 3
    """A `doctor` has found something that is wrong."""
    NOT_FOUND = 4
    """There is no such table, namespace, version, tag or column."""
    NOT_ALLOWED = 5
    """The server wants a key, refuses this one, or its principal may not do this."""
    UNAVAILABLE = 6
    """The server does not answer, or the connection was cut: try again."""
    LOCAL_FILE = 7
    """A file here cannot be read or written: the disk is full, say."""
    TIMED_OUT = 124
    """The time limit is over; what was waited for goes on."""
    INTERRUPTED = 130
    """Ctrl-C."""
    CLOSED_PIPE = 141
    """The reader of the output has gone, as `| head` does."""


class CommandError(Exception):
    """A command cannot go on; the message is one sentence that says what to do."""

    def __init__(self, message: str, status: ExitStatus = ExitStatus.FAILED) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: LanceNamespaceError) -> ExitStatus:
    """Return the exit status for an error of an operation."""
    code = int(error.code)
    if code in _NOT_FOUND:
        return ExitStatus.NOT_FOUND
    if code in _NOT_ALLOWED:
        return ExitStatus.NOT_ALLOWED
    return ExitStatus.UNAVAILABLE if code in _UNAVAILABLE else ExitStatus.FAILED


def describe_failure(error: LanceNamespaceError, message: str) -> str:
    """Return what an operation failed with, with what to do about a namespace, or a table, that is not there."""
    sentence = f"{message.rstrip('.')}. `tiltyard ls` lists what there is"
    if int(error.code) == _NAMESPACE_NOT_FOUND:
        return f"{sentence}, `tiltyard mkdir` creates a namespace."
    if int(error.code) == _TABLE_NOT_FOUND:
        return f"{sentence}."
    return message


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """End the process where the block fails as commands may fail. Raises SystemExit."""
    try:
        yield
        sys.stdout.flush()
    except CommandError as error:
        refuse(str(error), error.status)
    except BrokenPipeError:
        # What is buffered cannot be written any more: Python must not try at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitStatus.CLOSED_PIPE)
    except ConnectionError as error:
        refuse(f"{error}: try again.", ExitStatus.UNAVAILABLE)
    except OSError as error:
        if error.filename is None and error.errno not in _CODES_OF_WRITES:
            raise
        refuse(f"{error.filename or 'The output'}: {error.strerror}.", ExitStatus.LOCAL_FILE)
    except Exception as error:
        if not isinstance(error, getattr(sys.modules.get("pyarrow"), "ArrowException", ())):
            raise
        refuse(f"{str(error).strip()}", ExitStatus.FAILED)
