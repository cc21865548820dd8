"""Tables in Spark: `spark.read.format("tiltyard")`, `df.write.format("tiltyard")`, and both as streams.

`source` has the data source. Nothing is imported here: jobs use `dataframes`, which does without PySpark until it runs.
"""
