"""Properties of Spark that a caller may set for a job: sizes and parallelism, within bounds; others are the operator's.

A property can name code, files to fetch, programs to start and classes to load (`spark.submit.pyFiles`,
`spark.pyspark.driver.python`, `spark.jars`, `spark.driver.extraJavaOptions`), and each version of Spark has more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

_UNITS = {"": 1 << 20, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,12})([bkmgt]?)b?", re.IGNORECASE | re.ASCII)

NUMBERS: Mapping[str, int] = {
    "spark.cores.max": 1_000,
    "spark.default.parallelism": 100_000,
    "spark.driver.cores": 64,
    "spark.dynamicAllocation.initialExecutors": 100,
    "spark.dynamicAllocation.maxExecutors": 100,
    "spark.dynamicAllocation.minExecutors": 100,
    "spark.executor.cores": 64,
    "spark.executor.instances": 100,
    "spark.sql.execution.arrow.maxRecordsPerBatch": 1_000_000,
    "spark.sql.shuffle.partitions": 100_000,
    "spark.task.cpus": 64,
    "spark.task.maxFailures": 100,
}
"""Properties that are whole numbers from 1, and the most that each may be."""

SIZES: Mapping[str, str] = {
    "spark.driver.maxResultSize": "4g",
    "spark.driver.memory": "4g",
    "spark.driver.memoryOverhead": "4g",
    "spark.executor.memory": "16g",
    "spark.executor.memoryOverhead": "16g",
    "spark.executor.pyspark.memory": "16g",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4g",
    "spark.sql.autoBroadcastJoinThreshold": "256m",
}
"""Properties that are sizes of memory, and the most that each may be."""

SWITCHES = frozenset(
    {
        "spark.dynamicAllocation.enabled",
        "spark.speculation",
        "spark.sql.adaptive.coalescePartitions.enabled",
        "spark.sql.adaptive.enabled",
        "spark.sql.adaptive.skewJoin.enabled",
    }
)
"""Properties that are `true` or `false`."""


def check_spark_properties(given: Mapping[str, str], limits: Mapping[str, str]) -> None:
    """Check the properties that a job was submitted with. `limits` are the operator's own bounds, by name.

    Raises InvalidInputError for a property that is not on the list, or has a value out of its bounds.
    """
    for name, value in given.items():
        if name in SWITCHES:
            _check_switch(name, value)
        elif name in NUMBERS:
            _check_bound(name, value, _number(value), _number(limits.get(name, "")) or NUMBERS[name], limits)
        elif name in SIZES:
            _check_bound(name, value, _size(value), _size(limits.get(name, SIZES[name])), limits)
        else:
            _refuse(
                f"A job may not set the property {name!r} of Spark: only sizes and parallelism "
                f"({', '.join(_names())}). All others are set by the operator, in the worker's setting 'spark_conf'."
            )


def complaint(limits: Mapping[str, str]) -> str | None:
    """Say what is wrong with an operator's bounds, as one sentence; None if nothing is."""
    for name, value in limits.items():
        if name not in NUMBERS and name not in SIZES:
            return f"spark_limits has bounds of numbers and sizes that callers may set, and {name} is none of them."
        if not (_number(value) if name in NUMBERS else _size(value)):
            return f"spark_limits has {value!r} for {name}: write a number, or a size such as 8g."
    return None


def _names() -> list[str]:
    return sorted({*NUMBERS, *SIZES, *SWITCHES})


def _check_switch(name: str, value: str) -> None:
    if value.lower() not in ("true", "false"):
        _refuse(f"The property {name} of Spark is true or false, not {value!r}.")


def _check_bound(name: str, value: str, found: int | None, most: int | None, limits: Mapping[str, str]) -> None:
    shown = limits.get(name) or NUMBERS.get(name) or SIZES[name]
    if not found or (most is not None and found > most):
        _refuse(f"The property {name} of Spark is from 1 to {shown} in a job, not {value!r}.")


def _refuse(reason: str) -> NoReturn:
    # Settings import this module, before a server has said which of lance_namespace's own imports it leaves out.
    from lance_namespace.errors import InvalidInputError  # noqa: PLC0415

    raise InvalidInputError(reason)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 13 else None


def _size(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    return int(found[1]) * _UNITS[found[2].lower()] if found else None
