"""Requests and responses of the operations that pylance calls on a namespace: models of its own, or mappings."""

from __future__ import annotations

from typing import Any


class Response(dict[str, Any]):
    """A response as pylance reads it: like one of the generated models, whose import takes as long again as a server's
    whole start.
    """

    def model_dump(self) -> dict[str, Any]:
        """Return all fields by name."""
        return dict(self)


def fields_of(request: Any) -> dict[str, Any]:
    """Return the fields of a request, without those that are None."""
    fields = request.model_dump() if hasattr(request, "model_dump") else dict(request)
    return {name: value for name, value in fields.items() if value is not None}
