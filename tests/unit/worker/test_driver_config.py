"""The variables that driver processes inherit or get in private, and the Spark properties that callers may set."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.config import ConfigError, Settings, load_settings
from tiltyard.model.settings.spark_properties import (
    NUMBERS,
    SIZES,
    SWITCHES,
    check_spark_properties,
    to_java_properties,
)
from tiltyard.pipeline import private_variables as driver
from tiltyard.worker.driver_config import (
    driver_environment,
    driver_orders,
    inherited_variables,
    private_variables,
    spark_conf,
)

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = {"PATH": "/bin", "HOME": "/home", "JAVA_HOME": "/java", "PYTHONPATH": "/src", "LC_ALL": "C", "SPARK_HOME": "/s"}
PRIVATE = {
    "AWS_SECRET_ACCESS_KEY": "a",
    "AWS_REGION": "b",
    "TILTYARD_DB": "c",
    "PGPASSWORD": "d",
    "HTTPS_PROXY": "e",
    "HADOOP_CREDSTORE_PASSWORD": "f",
    "SPARK_AUTH_SECRET": "g",
    "WHATEVER": "h",
}


def test_driver_inherits_what_starts_it_and_is_handed_all_else() -> None:
    variables = {**PLAIN, **PRIVATE, "TILTYARD_HANDED_DOWN": "{}", "TILTYARD_JOB_CATALOG": "{}"}
    assert inherited_variables(variables) == PLAIN
    assert private_variables(variables) == PRIVATE
    assert inherited_variables(variables, ["WHATEVER"]) == {**PLAIN, "WHATEVER": "h"}
    assert "WHATEVER" not in private_variables(variables, ["WHATEVER"])


def test_driver_of_a_worker_has_no_secret_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PRIVATE.items():
        monkeypatch.setenv(name, value)
    settings = Settings(db="postgresql://me:word@db/t", storage_options={"key": "k"}, spark_client={"header.a": "b"})
    assert not PRIVATE.keys() & driver_environment(settings).keys()
    events = {"openlineage": "http://marquez:5000", "openlineage_key": "env:PGPASSWORD"}
    assert "openlineage" not in json.loads(driver_orders(settings, submitted=True))["telemetry"]
    settings = replace(settings, **events)
    assert "marquez" not in str(driver_environment(settings))
    orders = json.loads(driver_orders(settings, submitted=True))
    sent = {"url": "http://marquez:5000", "key": PRIVATE["PGPASSWORD"], "namespace": ""}
    assert orders["telemetry"]["openlineage"] == sent
    assert orders["variables"].items() >= PRIVATE.items() and orders["properties"]["db"] == settings.db


def test_variables_that_were_handed_over_are_withheld_from_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_private", {})
    monkeypatch.setattr(os, "environ", {"PATH": "/bin"})
    driver.adopt_variables({"AWS_REGION": "b", "PGPASSWORD": "d"})
    assert os.environ["PGPASSWORD"] == "d"
    with driver.withhold_variables():
        assert dict(os.environ) == {"PATH": "/bin"}
    assert os.environ["AWS_REGION"] == "b"
    assert driver.variables_for_tasks("local[2]") == {"AWS_REGION": "b"}
    assert driver.variables_for_tasks("spark://host:1") == driver.variables_for_tasks(None) == {}


def test_heap_of_drivers_is_a_setting_that_spark_conf_has_the_last_word_on(tmp_path: Path) -> None:
    conf = spark_conf(Settings(root=str(tmp_path), spark="local", spark_memory="3g"))
    assert conf["spark.driver.memory"] == "3g" and "ExitOnOutOfMemoryError" in conf["spark.driver.defaultJavaOptions"]
    settings = Settings(
        root=str(tmp_path), spark="local", spark_conf={"spark.driver.memory": "5g", "spark.jars": "a.jar"}
    )
    assert spark_conf(settings).items() >= {"spark.driver.memory": "5g", "spark.jars": "a.jar"}.items()


def test_properties_are_written_as_java_reads_them() -> None:
    assert to_java_properties({"a.b": "c d"}) == "a.b=c\\u0020d\n"
    assert to_java_properties({"a": "x\ny=\\z\u20ac\U0001f600"}) == "a=x\\u000ay\\u003d\\u005cz\\u20ac\\ud83d\\ude00\n"


@pytest.mark.parametrize("name", [*NUMBERS, *SIZES])
def test_number_or_size_is_bounded_and_the_bound_is_the_operators(name: str) -> None:
    check_spark_properties({name: "1" if name in NUMBERS else "1m"}, {})
    for value in ("", "0", "-1", "x", "1 ", "9" * 12, "9" * 40, "\u0661"):
        with pytest.raises(InvalidInputError, match=name):
            check_spark_properties({name: value}, {})
    settings = {name: "1000000" if name in NUMBERS else "900g"}
    check_spark_properties({name: "1000000" if name in NUMBERS else "900g"}, settings)
    with pytest.raises(InvalidInputError, match=name):
        check_spark_properties({name: "1000001" if name in NUMBERS else "901g"}, settings)


def test_switch_is_true_or_false() -> None:
    for name in SWITCHES:
        check_spark_properties({name: "false"}, {})
        with pytest.raises(InvalidInputError, match="true or false"):
            check_spark_properties({name: "1"}, {})


def test_limit_of_what_nobody_may_set_is_refused_when_the_server_starts() -> None:
    for limits in ({"spark.jars": "1"}, {"spark.driver.memory": "much"}):
        with pytest.raises(ConfigError, match="spark_limits"):
            load_settings({"spark_limits": limits}, environ={})
