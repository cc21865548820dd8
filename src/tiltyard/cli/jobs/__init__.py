"""Commands about jobs of the data pipeline: run, submitted and scheduled; pipelines of one file; views."""
