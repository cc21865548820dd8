"""Functions of clients in the catalog's database: definitions, failed rows, secrets."""
