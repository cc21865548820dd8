"""Checks of rows, their one evaluator, and contracts of tables: for servers, jobs of the pipeline, and tests."""
