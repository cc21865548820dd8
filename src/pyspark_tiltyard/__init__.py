"""Register the data source `format("tiltyard")`: Spark finds it by its module name, which begins with `pyspark_`."""

from __future__ import annotations

from tiltyard.pipeline.datasource.source import TiltyardSource as DefaultSource

__all__ = ["DefaultSource"]
