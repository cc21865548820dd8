"""Files of formats that Spark reads, as DataFrames: ORC and Avro."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources.file_options import FileOptions, given_options
from tiltyard.pipeline.task_errors import clean_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK_FORMATS = ("orc", "avro")


def spark_format(path: str, format_: str | None) -> str | None:
    """Return the format of files that Spark reads, by its name or by that of the files; None for any other one."""
    if format_ is not None:
        return format_ if format_ in SPARK_FORMATS else None
    extension = path.lower().rpartition(".")[2]
    return extension if extension in SPARK_FORMATS else None


def read_spark_files(spark: SparkSession, path: str, format_: str, options: FileOptions) -> DataFrame:
    """Return the rows of files as a DataFrame.

    `options` are those of other formats, none of which may be set but `format` itself. Raises RefusedError, also for
    files that are not there, and where Spark lacks the format's package.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415  # an extra

    if given := [name for name in given_options(options) if name != "format"]:
        raise RefusedError(f"{given[0]} is no option of {format_}, which Spark reads: leave it out.")
    try:
        return spark.read.format(format_).load(path)
    except AnalysisException as error:
        if format_ == "avro" and "avro" in str(error).lower() and "path" not in str(error.getCondition() or "").lower():
            raise RefusedError(
                "Spark reads Avro by a package of its own: name it by --conf "
                f"spark.jars.packages=org.apache.spark:spark-avro_2.13:{spark.version}."
            ) from error
        raise RefusedError(f"{path} cannot be read as {format_}: {clean_message(error).splitlines()[0]}.") from error
