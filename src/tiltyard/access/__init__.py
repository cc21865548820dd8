"""Authorization: privileges and policies of principals, and what each operation needs (docs/security.md)."""
