"""The data pipeline on Apache Spark, through PySpark: ingest, upsert, computed columns, indexes, compaction, views.

The pipeline is a client: it talks to a server, or to a catalog in process, by the namespace client, and to storage by
pylance. It imports nothing of the server. In each job's package, `job.py` runs in the driver and `tasks.py` in Spark's
executors. `docs/pipeline.md` describes it for users.
"""
