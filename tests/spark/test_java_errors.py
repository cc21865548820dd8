"""Errors of Java are sentences: of code that ends its process, and of a database without a driver."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import InvalidInputError

import tiltyard
from tiltyard.pipeline.java import SparkFailedError, describe_java_error
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.spark_tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def end_process(_: Any) -> None:
    """Read an address that no process may read."""
    ctypes.string_at(0)


def test_code_that_ends_its_process_is_a_sentence(spark: SparkSession) -> None:
    with pytest.raises(InvalidInputError, match=r"ended the Python process that called it.*memory_mb") as raised:
        run_tasks(spark, LocalRun(), end_process, [1])
    assert "org.apache" not in str(raised.value) and raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "Spark has no driver for jdbc:nothing: connect with conf="),
        ({"driver": "a.B"}, "no driver for jdbc:nothing"),
    ],
)
def test_database_without_a_driver_is_a_sentence(spark: SparkSession, options: dict[str, str], reason: str) -> None:
    source = tiltyard.Jdbc("jdbc:nothing://host/db", table="t", password="secret", options=options)
    with pytest.raises(InvalidInputError, match=reason):
        source.read(spark)


def test_other_errors_of_java_have_their_name_alone() -> None:
    text = """An error occurred while calling o96.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
	at org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero of 'secret'."""
    error = describe_java_error(RuntimeError(text))
    assert isinstance(error, SparkFailedError)
    assert "SparkArithmeticException [DIVIDE_BY_ZERO]." in str(error) and "secret" not in str(error)
