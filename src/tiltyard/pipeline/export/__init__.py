"""Export: a version of a table as Parquet files."""
