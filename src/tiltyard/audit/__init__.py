"""The audit: one record of each call, kept in the catalog and, by choice, sent elsewhere. Knows nothing of HTTP."""

from tiltyard.audit.entries import entry, named_objects, safe_context
from tiltyard.audit.trail import Trail, open_trail

__all__ = ["Trail", "entry", "named_objects", "open_trail", "safe_context"]
