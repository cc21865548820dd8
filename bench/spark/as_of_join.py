"""As-of joins beside Spark's own ways: `python -m bench.spark.as_of_join`.

Orders are joined with the last price of their item, of which a share is of one item (`--hot`). Spark's own ways are a
join over the range of times, of which the last price is kept by a window, and a window over both sides. DuckDB's ASOF
JOIN says which rows are right, where it is installed: all ways have to find the same prices. Wall times are medians of
rounds that take turns; the first round, in which Spark compiles, does not count.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom

import tiltyard

SEED, ITEMS = 20_260_101, 5_000
PRICES_OF_ORDERS = 4
"""One price for so many orders."""
SPARK = {"spark.ui.enabled": "false", "spark.driver.memory": "3g"}
Way = Callable[[DataFrame, DataFrame], DataFrame]


def make_tables(orders: int, hot: float) -> tuple[pa.Table, pa.Table]:
    """Return orders (id, item, at) and prices (item, since, price); no two prices are of one item and time."""
    chance = np.random.default_rng(SEED)
    prices = max(1, orders // PRICES_OF_ORDERS)

    def items(count: int) -> np.ndarray:
        return np.where(chance.random(count) < hot, 0, chance.integers(1, ITEMS, count))

    times = chance.integers(0, 1 << 40, orders)
    since = chance.permutation(np.unique(chance.integers(0, 1 << 40, prices)))
    left = pa.table({"id": np.arange(orders), "item": items(orders), "at": times})
    return left, pa.table({"item": items(len(since)), "since": since, "price": chance.random(len(since))})


def by_range_join(orders: DataFrame, prices: DataFrame) -> DataFrame:
    """Join each order with all earlier prices of its item, and keep the last."""
    then = prices.withColumnRenamed("item", "its_item")
    joined = orders.join(then, (F.col("item") == F.col("its_item")) & (F.col("since") <= F.col("at")), "left")
    last = Window.partitionBy("id").orderBy(F.desc("since"))
    return joined.withColumn("place", F.row_number().over(last)).where("place = 1").drop("place", "its_item")


def by_window(orders: DataFrame, prices: DataFrame) -> DataFrame:
    """Put both sides in order by a window of each item, and carry the last price on."""
    price = F.struct("since", "price")
    left = orders.select("item", F.col("at").alias("time"), "id", F.lit(None).cast("struct<since:bigint,price:double>"))
    right = prices.select("item", F.col("since").alias("time"), F.lit(None).cast("bigint"), price)
    both = left.union(right).toDF("item", "time", "id", "found")
    window = Window.partitionBy("item").orderBy("time", F.col("id").isNotNull())
    carried = both.withColumn("found", F.last("found", ignorenulls=True).over(window))
    return carried.where("id IS NOT NULL").select("id", "item", F.col("time").alias("at"), "found.since", "found.price")


def check(name: str, found: pa.Table, expected: pa.Table) -> None:
    """Raise RuntimeError unless an answer has the prices of another, by the orders' ids."""
    one, other = (table.select(["id", "since", "price"]).sort_by("id").combine_chunks() for table in (found, expected))
    if not one.equals(other):
        raise RuntimeError(f"{name} has found other prices.")


def main() -> None:
    """Measure the ways by turns, and compare what they find."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.as_of_join", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="orders [default: 2000000]")
    parser.add_argument("--hot", type=float, default=0.5, help="the share of one item [default: 0.5]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each [default: 3]")
    parser.add_argument("--range-join", action="store_true", help="the join over ranges, too: its rows are pairs")
    parser.add_argument("--master", default="local[2]", help="where Spark runs [default: local[2]]")
    arguments = parser.parse_args()
    tables = make_tables(arguments.rows, arguments.hot)
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as folder:
        lake = tiltyard.connect(Path(folder) / "root", master=arguments.master, conf=SPARK)
        for name, rows in zip(("orders", "prices"), tables, strict=True):
            lake.table(name).ingest(rows)
        ways: dict[str, Way] = {
            "lake.as_of_join": lambda orders, prices: lake.as_of_join(
                orders, prices, on="item", left_time="at", right_time="since"
            ),
            "a window of Spark": by_window,
        }
        if arguments.range_join:
            ways["a range join of Spark"] = by_range_join
        sides = [lake.table(name).to_spark() for name in ("orders", "prices")]
        expected = _ask_duckdb(*tables) if find_spec("duckdb") else None
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(arguments.rounds + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way(*sides).write.format("noop").mode("overwrite").save()
                if number:
                    seconds[name].append(time.perf_counter() - began)
                else:
                    answer = way(*sides).toArrow()
                    expected = answer if expected is None else expected
                    check(name, answer, expected)
    for name, times in seconds.items():
        rate = arguments.rows / median(times)
        print(f"{name}: {median(times):.1f} s, {rate:,.0f} orders/s ({arguments.hot:.0%} of them of one item)")


def _ask_duckdb(orders: pa.Table, prices: pa.Table) -> pa.Table:
    import duckdb  # noqa: PLC0415  # an extra

    with duckdb.connect() as connection:
        connection.register("orders", orders)
        connection.register("prices", prices)
        return connection.sql(
            "SELECT o.id, p.since, p.price FROM orders o ASOF LEFT JOIN prices p ON o.item = p.item AND o.at >= p.since"
        ).to_arrow_table()


if __name__ == "__main__":
    main()
