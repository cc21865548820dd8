"""The domain without I/O: ids, modes, principals, privileges, index types, schemas; registries of operations, jobs."""
