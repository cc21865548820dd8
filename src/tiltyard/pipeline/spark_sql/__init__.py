"""SQL of callers in Spark: what it may be, how much it may make, and the session that it runs in."""
