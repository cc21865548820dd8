"""Write rows: create, insert, merge, update, delete, multipart."""
