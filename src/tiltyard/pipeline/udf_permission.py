"""Whether code that clients brought may run: always where they drive a job themselves, on a worker if it says so."""

from __future__ import annotations

import os

from lance_namespace.errors import PermissionDeniedError

from tiltyard.model.jobs import DRIVER, UDFS


def check_client_code_allowed() -> None:
    """Raise PermissionDeniedError where clients' code may not run. Called before any of it is unpickled or imported."""
    if os.environ.get(UDFS) == "off":
        raise PermissionDeniedError("This worker runs no code of clients: its setting 'udfs' allows it.")


def is_worker_driver() -> bool:
    """Tell whether this process drives jobs for a worker: SQL is then not of whoever started the process."""
    return os.environ.get(DRIVER) == "worker"
