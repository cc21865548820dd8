"""The audit: a record of each request, kept in the catalog and, by choice, sent elsewhere. Knows nothing of HTTP."""

from tiltyard.audit.entries import object_ids, redact_context, sanitize_text, to_entry
from tiltyard.audit.trail import AuditTrail, check_audit_file, open_trail

__all__ = [
    "AuditTrail",
    "check_audit_file",
    "object_ids",
    "open_trail",
    "redact_context",
    "sanitize_text",
    "to_entry",
]
