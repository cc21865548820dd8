"""The domain's terms, shared by all packages: ids, modes, principals, privileges, schemas, operations and jobs."""
