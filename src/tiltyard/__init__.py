"""Tiltyard: the open server for Lance tables."""

from __future__ import annotations

import sys
from typing import Any

__version__ = "0.1.0"

# `lance_namespace.connect("tiltyard", …)` finds us once both are imported; importing it takes a second that
# `tiltyard --help` has no use for. The full name, "tiltyard.twin.Namespace", is found at any time.
if "lance_namespace" in sys.modules:
    sys.modules["lance_namespace"].register_namespace_impl("tiltyard", "tiltyard.twin.Namespace")


def __getattr__(name: str) -> Any:
    """`tiltyard.Namespace`, `tiltyard.publish` and its errors, imported when they are asked for."""
    if name == "Namespace":
        from tiltyard.twin import Namespace  # noqa: PLC0415  # see above

        return Namespace
    if name in ("publish", "PublishConflictError", "PublishUncertainError"):
        from tiltyard import publishing  # noqa: PLC0415  # see above

        return getattr(publishing, name)
    raise AttributeError(name)
