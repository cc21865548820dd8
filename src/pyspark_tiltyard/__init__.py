"""Where Spark looks for the source behind `format("tiltyard")`: in modules that are called `pyspark_…`."""

from __future__ import annotations

from tiltyard.pipeline.datasource import TiltyardSource as DefaultSource

__all__ = ["DefaultSource"]
