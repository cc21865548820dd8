"""What somebody who asked before may do now: the name and the groups are those of then, all else is looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError
from msgspec import structs

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.principals import Principal


def present(ctx: Context, principal: Principal) -> Principal:
    """A principal as it is now: an administrator of then need not be one any more.

    Groups are a token's to tell, and stay as they were. Raises PermissionDeniedError for a principal that was disabled.
    """
    known = ctx.store.describe_principal(principal.name)
    if known is None:
        return principal
    if known.disabled:
        raise PermissionDeniedError(f"The principal '{principal.name}' is disabled.")
    return structs.replace(principal, administrator=known.administrator)
