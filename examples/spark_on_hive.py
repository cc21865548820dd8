"""What Spark without a connector for Lance sees of a table in a Hive Metastore: its entry, and a refusal.

    python examples/spark_on_hive.py thrift://host:port DATABASE TABLE

`hive.py` runs this in a process of its own. It ends with a message if Spark runs a statement that it should refuse.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

STATEMENTS = (
    "SELECT * FROM {table}",
    "DESCRIBE {table}",
    "INSERT INTO {table} VALUES (1)",
    "ALTER TABLE {table} RENAME TO {database}.mine",
    "DROP TABLE {table}",
)


def main() -> None:
    """Look at the table of the command line."""
    uri, database, table = sys.argv[1:]
    spark = start_spark(uri)
    show_entry(spark, uri, database, table)
    tables = [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {database}").collect()]
    print(f"\nSpark: SHOW TABLES IN {database}\n  {', '.join(tables)}")
    for form in STATEMENTS:
        statement = form.format(database=database, table=f"{database}.{table}")
        print(f"Spark: {statement}\n  refused: {refusal(spark, statement)}")
    spark.stop()


def start_spark(uri: str) -> SparkSession:
    """Start Spark in this process, with the metastore as its catalog."""
    builder = SparkSession.builder.master("local[1]").appName("demo").enableHiveSupport()
    for name, value in {
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def show_entry(spark: SparkSession, uri: str, database: str, table: str) -> None:
    """Print the table's entry as Hive's own client reads it from the metastore."""
    java: Any = spark.sparkContext._jvm
    hive = java.org.apache.hadoop.hive
    settings = hive.conf.HiveConf()
    settings.set("hive.metastore.uris", uri)
    client = hive.metastore.HiveMetaStoreClient(settings)
    entry = client.getTable(database, table)
    client.close()
    parameters = dict(entry.getParameters())
    print("The entry in the metastore, by Hive's own client")
    print(f"  {entry.getTableType()} {entry.getDbName()}.{entry.getTableName()} at {entry.getSd().getLocation()}")
    for name in ("table_type", "managed_by", "EXTERNAL", "spark.sql.sources.provider"):
        print(f"  {name} = {parameters[name]}")


def refusal(spark: SparkSession, statement: str) -> str:
    """Return why Spark refuses a statement; end with a message if it does not."""
    try:
        spark.sql(statement).collect()
    except (PySparkException, Py4JJavaError) as error:  # some errors of Spark have no class in Python
        reason = re.search(r"\[[A-Z_.]+\][^.]*\.", str(error))
        if reason is not None:
            return reason[0]
        raise
    sys.exit(f"Spark has run what it cannot do rightly: {statement}")


if __name__ == "__main__":
    main()
