"""What this process keeps of versions of tables: their handles, facts, columns and rows."""
