"""Protections of a catalog in which nothing is protected, for tests of what only asks whether something is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

NOTHING_PROTECTED: Any = SimpleNamespace(check_request_writable=lambda request: None, has_approvals=False)
NOTHING_LIMITED: Any = SimpleNamespace(
    check_requests=lambda principal, path=(): None, check_storing=lambda principal, request, resources: None
)
"""The quotas of a catalog that has none."""
