"""Refuse a commit, or rows, that fail the contract of their table."""

from __future__ import annotations

from lance_namespace.errors import TableSchemaValidationError


class ContractError(TableSchemaValidationError):
    """Rows fail a contract: 400, and nothing that a retry helps."""
