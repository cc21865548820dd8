"""What queries may say in the words of DuckDB and PostgreSQL: functions on JSON, other names, other clauses."""
