"""The check `distribution`, on a folder without Spark: compared with the last run, kept in the commit."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

import tiltyard
from tiltyard.change_feed.table_history import read_transaction
from tiltyard.contracts.checks import parse_check
from tiltyard.pipeline.writing.distribution_checks import PROFILES_PROPERTY, QUANTILES, ColumnProfile, compare

CHECK = "distribution(price, 0.1)"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tiltyard.Lake:
    return tiltyard.connect(tmp_path_factory.mktemp("distributions"))


def prices(add: float = 0, scale: float = 1, nulls: int = 0) -> pa.Table:
    values = [None if number < nulls else add + scale * number for number in range(101)]
    return pa.table({"id": range(101), "price": pa.array(values, pa.float64())})


def test_distribution_is_compared_with_the_last_run_that_has_measured_it(lake: tiltyard.Lake) -> None:
    table = lake.table("prices")
    assert json.loads(table.ingest(prices(), checks=CHECK).figures["checks"])[0]["passed"]
    assert table.write(prices(add=7), checks=CHECK).version == 2  # 7 of a spread of 80
    table.write(prices(add=500))  # not checked, and so not compared with
    version = table.version
    with pytest.raises(InvalidInputError) as failure:
        table.write(prices(add=20), checks=CHECK)
    assert str(failure.value) == (
        "Nothing was published: distribution(price, 0.1): the mean is 70, and was 57 in the last run, "
        "0.163 of its spread away."
    )
    with pytest.raises(InvalidInputError, match="the 90 % quantile is 187, and was 97 in the last run"):
        table.write(prices(add=7, scale=2), checks=CHECK)
    with pytest.raises(InvalidInputError, match=r"0.198 of the rows are null, and 0 in the last run"):
        table.write(prices(nulls=20), checks=CHECK)
    assert table.version == version
    run = table.write(prices(add=20), checks=[f"warn: {CHECK}", "distribution(id, 0.5)"])
    (warning, passed) = json.loads(run.figures["checks"])
    assert (warning["passed"], warning["severity"], passed["passed"]) == (False, "warn", True)
    assert table.write(prices(add=20), checks=CHECK).version == version + 2  # the warned run is the last one now
    assert table.ingest(prices(add=21), mode="overwrite", checks=CHECK).rows == 101


def test_distribution_is_kept_in_the_commit(lake: tiltyard.Lake) -> None:
    table = lake.table("kept")
    table.ingest(prices(nulls=1), checks=CHECK)
    transaction = read_transaction(table.dataset(), 1)
    assert transaction is not None
    kept = json.loads((transaction.transaction_properties or {})[PROFILES_PROPERTY])
    assert kept == {"price": {"rows": 101, "nulls": 1, "mean": 50.5, "quantiles": [10.0, 25.0, 50.0, 75.0, 90.0]}}


def test_distribution_of_times_and_booleans_and_of_no_rows(lake: tiltyard.Lake) -> None:
    table, now = lake.table("times"), datetime(2026, 1, 1, tzinfo=UTC)

    def rows(hours: int, share: int) -> pa.Table:
        seen = [now + timedelta(hours=hours + number) for number in range(10)]
        return pa.table({"seen": seen, "ok": [number < share for number in range(10)]})

    checks = ["distribution(seen, 0.5)", "distribution(ok, 0.5)"]
    table.ingest(rows(0, 2), checks=checks)
    table.write(rows(0, 2).slice(0, 0), checks=checks)  # nothing to compare, nothing to keep
    table.write(rows(2, 3), checks=checks)
    with pytest.raises(InvalidInputError, match=r"distribution\(seen, 0.5\): the mean is .* of its spread away"):
        table.write(rows(48, 3), checks=checks)
    with pytest.raises(InvalidInputError, match=r"distribution\(ok, 0.5\): the 10 % quantile is 1, and was 0"):
        table.write(rows(2, 10), checks=checks)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("distribution(name, 0.1)", "'name' is string, neither a number nor a time"),
        ("distribution(id, much)", "'much' is no tolerance"),
        ("distribution(id, 0)", "'0' is no tolerance"),
        ("distribution(id)", "is not a check"),
        ("distribution(none, 0.1)", "there is no column 'none'"),
    ],
)
def test_wrong_distribution_checks_are_refused(lake: tiltyard.Lake, check: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        lake.table("refused").ingest([{"id": 1, "name": "a"}], checks=check)
    assert not lake.table("refused").exists()


def test_values_that_were_all_the_same_have_their_size_as_spread() -> None:
    def same(value: float) -> ColumnProfile:
        return ColumnProfile(10, 0, value, (value,) * len(QUANTILES))

    check = parse_check("distribution(a, 0.1)")
    assert compare(check, same(104), same(100)) == compare(check, same(0.05), same(0)) == ""
    assert "0.2 of its spread away" in compare(check, same(120), same(100))
    assert compare(check, same(120), None) == compare(check, ColumnProfile(5, 5), ColumnProfile(9, 9)) == ""
