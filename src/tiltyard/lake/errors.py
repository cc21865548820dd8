"""Errors of the API: those of jobs, which name an argument as the API does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.runs import RunCanceledError
from tiltyard.pipeline.task_errors import clean_message, drop_repeated_prefix

__all__ = ["RunCanceledError", "RunFailedError", "naming", "translate"]

_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


class RunFailedError(InternalError):
    """A run failed that another process drove: the message is what its job says of it."""


def _name_arguments(text: str) -> str:
    """Return a sentence with the options of the command line as arguments: `--null-value` is `null_value`."""
    return _OPTION.sub(lambda match: match[1].replace("-", "_"), text)


@contextmanager
def translate() -> Iterator[None]:
    """Raise the errors of the block as the API's: a RefusedError is an InvalidInputError, options are arguments."""
    try:
        yield
    except RefusedError as error:
        raise InvalidInputError(_name_arguments(str(error))) from error
    except LanceNamespaceError as error:
        error.args = (_name_arguments(drop_repeated_prefix(str(error))),)
        raise


@contextmanager
def naming(arguments: str) -> Iterator[None]:
    """Raise what Lance raises in the block as an InvalidInputError that names the arguments."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"{arguments}: {clean_message(error)}.") from error
