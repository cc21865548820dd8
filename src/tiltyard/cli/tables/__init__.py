"""Commands that create tables, and change their columns, rows and indexes."""
