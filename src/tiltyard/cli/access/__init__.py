"""Commands about who may do what: grants, roles and policies, keys, protections, quotas, the audit log."""
