"""Errors that all catalogs over the network share: what is missing or taken there, and how a request fails."""

from __future__ import annotations

from dataclasses import dataclass

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    ThrottlingError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from tiltyard.model.ids import Id


def missing_namespace(namespace: Id) -> NamespaceNotFoundError:
    """Return the error for a namespace that is not there."""
    return NamespaceNotFoundError(f"No namespace '{namespace}' here.")


def existing_namespace(namespace: Id) -> NamespaceAlreadyExistsError:
    """Return the error for a new namespace whose name is taken."""
    if not namespace:
        return NamespaceAlreadyExistsError("The root namespace always exists.")
    return NamespaceAlreadyExistsError(f"There is a namespace '{namespace}' already.")


def non_empty_namespace(namespace: Id) -> NamespaceNotEmptyError:
    """Return the error for a namespace that cannot be dropped."""
    return NamespaceNotEmptyError(f"The namespace '{namespace}' has namespaces, or tables of any format: drop them.")


def root_dropped(backend: str) -> InvalidInputError:
    """Return the error for dropping a mount's root."""
    return InvalidInputError(f"The root namespace cannot be dropped: unmount {backend}.")


def missing_table(table: Id) -> TableNotFoundError:
    """Return the error for a table that is not there."""
    return TableNotFoundError(f"No table '{table}' here.")


def existing_table(table: Id) -> TableAlreadyExistsError:
    """Return the error for a new table whose name is taken."""
    return TableAlreadyExistsError(f"There is a table '{table}' already.")


def impossible_name(backend: str, name: str, rule: str) -> InvalidInputError:
    """Return the error for a name that a backend would fold or cannot hold; `rule` says how names are."""
    return InvalidInputError(f"{backend} cannot hold the name '{name}': {rule}.")


def unsupported(backend: str, operation: str, reason: str) -> UnsupportedOperationError:
    """Return the error for what a backend cannot do: `operation` is a verb with its object."""
    return UnsupportedOperationError(f"{backend} cannot {operation}: {reason}.")


class MalformedAnswerError(ServiceUnavailableError):
    """A catalog answers what is no answer to the request. Others may be answered well: it is not taken to be away."""


@dataclass(frozen=True, slots=True)
class CatalogFailure:
    """A way in which a request fails whatever it asks for: its error, and what the message says of the backend."""

    error_type: type[LanceNamespaceError]
    reason: str

    def error(self, backend: str) -> LanceNamespaceError:
        """Return the error of a backend."""
        return self.error_type(f"{backend} {self.reason}.")


INVALID = CatalogFailure(InvalidInputError, "does not take this")
UNAUTHENTICATED = CatalogFailure(UnauthenticatedError, "does not accept the mount's credentials")
FORBIDDEN = CatalogFailure(PermissionDeniedError, "refuses this to the mount's credentials")
UNSUPPORTED = CatalogFailure(UnsupportedOperationError, "cannot do this: it has no such operation")
CONFLICT = CatalogFailure(ConcurrentModificationError, "has another version of this by now: try again")
THROTTLED = CatalogFailure(ThrottlingError, "is throttled: try again in a moment")
UNAVAILABLE = CatalogFailure(ServiceUnavailableError, "does not answer: try again in a moment")
MALFORMED = CatalogFailure(MalformedAnswerError, "answers what is no answer to this: its log may say why")

HTTP_FAILURES = {
    400: INVALID,
    401: UNAUTHENTICATED,
    403: FORBIDDEN,
    405: UNSUPPORTED,
    406: UNSUPPORTED,
    409: CONFLICT,
    419: UNAUTHENTICATED,
    429: THROTTLED,
    501: UNSUPPORTED,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: UNAVAILABLE,
}
"""What the statuses of HTTP mean; 419 is Iceberg's, for a token that has expired."""


def http_error(backend: str, status: int) -> LanceNamespaceError:
    """Return the error for a status of HTTP."""
    failure = HTTP_FAILURES.get(status) or CatalogFailure(InternalError, f"has failed with HTTP {status}")
    return failure.error(backend)
