"""Tables in the catalog's database: entries, versions, folders to delete, trash, uploads."""
