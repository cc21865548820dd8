"""The page where queries of SQL are written and run."""
