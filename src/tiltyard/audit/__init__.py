"""The audit: one record of each call, kept in the catalog and, by choice, sent elsewhere. Knows nothing of HTTP."""

from tiltyard.audit.entries import entry, named_objects, printable, safe_context
from tiltyard.audit.trail import Trail, check_audit, open_trail

__all__ = ["Trail", "check_audit", "entry", "named_objects", "open_trail", "printable", "safe_context"]
