"""Options of Spark's JVMs in tests: most live for seconds, too short for the optimizing compiler to be worth it."""

from __future__ import annotations

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LIGHT_JVM = {"spark.driver.extraJavaOptions": OPTIONS, "spark.executor.extraJavaOptions": OPTIONS}
