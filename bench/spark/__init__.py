"""The pipeline on Spark, against pylance in one process and against what Spark itself can do."""
