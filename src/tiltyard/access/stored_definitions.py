"""Authorize what a stored definition names: the one check of the rights of whoever stored it, at each of its uses.

A definition outlives the request that stored it: a view, a registered function, a queued job. When it is used, whoever
stored it may have lost a privilege or been disabled, and what it names may have been dropped and made anew by others.
So the rights are those that its definer has now, and they are looked up by the ids of the objects, which are never
given twice: the caller has resolved names to records, or has stored ids. docs/security.md lists the definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import NamespaceNotFoundError, PermissionDeniedError, TableNotFoundError
from msgspec import structs

from tiltyard.access.authorization import (
    authorize_namespace_id,
    authorize_record,
    authorize_server,
    refresh_principal,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.model.principals import Principal
    from tiltyard.store import TableRecord

_HIDDEN = (PermissionDeniedError, TableNotFoundError, NamespaceNotFoundError)


@dataclass(frozen=True, slots=True)
class Definer:
    """Whoever stored a definition, as recorded then.

    `refusal` is the sentence of a definer without the rights, in which `{name}` stands for its name, and which says who
    else has to do what.
    """

    principal: Principal
    refusal: str

    def context(self, ctx: Context) -> Context:
        """Return a context whose caller is the definer as it is now. Raises PermissionDeniedError if it is disabled."""
        try:
            principal = refresh_principal(ctx, self.principal)
        except PermissionDeniedError as error:
            raise self._refused(error) from error
        return structs.replace(ctx, principal=principal, resolved=None)

    def authorize_table(self, own: Context, path: Id, record: TableRecord, required: int) -> None:
        """Check that the definer has the privileges on a table, and that no policy of the table binds it.

        `own` is its context; `path` is the table's name in the refusal. Raises PermissionDeniedError.
        """
        self._authorize(own, lambda: authorize_record(own, path, record, required))

    def authorize_namespace(self, own: Context, path: Id, namespace_id: int, required: int) -> None:
        """Check that the definer has the privileges on a namespace. Raises PermissionDeniedError."""
        self._authorize(own, lambda: authorize_namespace_id(own, path, namespace_id, required))

    def authorize_server(self, own: Context, required: int) -> None:
        """Check that the definer has the privileges on the whole server. Raises PermissionDeniedError."""
        self._authorize(own, lambda: authorize_server(own, required))

    def _authorize(self, own: Context, check: Callable[[], None]) -> None:
        if own.is_unchecked:
            return
        try:
            check()
        except _HIDDEN as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> PermissionDeniedError:
        return PermissionDeniedError(f"{self.refusal.format(name=self.principal.name)} {error}")
