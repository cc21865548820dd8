"""Check the properties of Spark that a caller may set for a job: sizes and parallelism, within bounds.

Other properties are the operator's: they can name code, files to fetch, programs to start and classes to load
(`spark.submit.pyFiles`, `spark.pyspark.driver.python`, `spark.jars`, `spark.driver.extraJavaOptions`), and each version
of Spark adds some.
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


def check_spark_properties(properties: Mapping[str, str], limits: Mapping[str, str]) -> None:
    """Check the properties that a job is submitted with. `limits` are the operator's own bounds, by name.

    Raises InvalidInputError for a property that is not on the list, or has a value out of its bounds.
    """
    for name, value in properties.items():
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


def spark_limits_problem(limits: Mapping[str, str]) -> str | None:
    """Return what is wrong with an operator's bounds, as one sentence; None if nothing is."""
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


def _check_bound(name: str, value: str, number: int | None, most: int | None, limits: Mapping[str, str]) -> None:
    bound = limits.get(name) or NUMBERS.get(name) or SIZES[name]
    if not number or (most is not None and number > most):
        _refuse(f"The property {name} of Spark is from 1 to {bound} in a job, not {value!r}.")


def _refuse(reason: str) -> NoReturn:
    # Settings import this module before `import_lazily` has deferred the imports of lance_namespace.
    from lance_namespace.errors import InvalidInputError  # noqa: PLC0415

    raise InvalidInputError(reason)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 13 else None


def _size(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    return int(match[1]) * _UNITS[match[2].lower()] if match else None


def to_java_properties(properties: Mapping[str, str]) -> str:
    """Format properties as a Java properties file, as Spark reads it, in ASCII alone."""
    return "".join(f"{_escape(name, '._-')}={_escape(value, '._-/:')}\n" for name, value in properties.items())


def _escape(text: str, plain: str) -> str:
    """Return a text with all but ASCII letters, digits and the characters of `plain` as \\uXXXX."""
    units = text.encode("utf-16-be")
    codes = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(
        chr(code) if chr(code).isascii() and (chr(code).isalnum() or chr(code) in plain) else f"\\u{code:04x}"
        for code in codes
    )
