"""The data pipeline on Apache Spark, through PySpark: ingest, upsert, computed columns, indexes, compaction, views.

It is a client: it talks to a server, or to a catalog in process, by the namespace client, and to storage by pylance.
It imports nothing of the server's inside. `docs/pipeline.md` has the whole story.
"""
