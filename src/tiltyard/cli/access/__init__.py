"""Commands about who may do what: grants, roles and policies, keys, protections, the audit log."""
