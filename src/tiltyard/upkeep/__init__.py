"""Upkeep: what a table needs by one set of thresholds, and how fragments are compacted and indexes extended.

Two engines do it: the servers and their workers (`tables/upkeep`), by themselves and a little at a time; and Spark's
job `optimize` (`pipeline/optimize`), when asked, the whole table in one run. Streams compact their table as they write.
"""
