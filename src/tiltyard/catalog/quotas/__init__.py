"""Quotas of principals and namespaces, and what they have used."""
