"""Properties of Spark that a caller submits with a job: code, files and programs by way of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from tests.services.server import ServerProcess

RUNS_CODE = {
    "spark.archives": "http://127.0.0.1:9/evil.zip",
    "spark.driver.defaultJavaOptions": "-XX:OnOutOfMemoryError=touch",
    "spark.driver.extraClassPath": "/tmp/evil.jar",
    "spark.driver.extraJavaOptions": "-javaagent:/tmp/evil.jar",
    "spark.executor.extraJavaOptions": "-javaagent:/tmp/evil.jar",
    "spark.executorEnv.PYTHONPATH": "/tmp/evil",
    "spark.extraListeners": "evil.Listener",
    "spark.files": "/etc/passwd",
    "spark.hadoop.fs.defaultFS": "http://127.0.0.1:9/",
    "spark.jars": "http://127.0.0.1:9/evil.jar",
    "spark.jars.packages": "evil:evil:1",
    "spark.kubernetes.executor.container.image": "evil",
    "spark.master": "spark://127.0.0.1:9",
    "spark.plugins": "evil.Plugin",
    "spark.pyspark.driver.python": "/tmp/evil.sh",
    "spark.pyspark.python": "/tmp/evil.sh",
    "spark.redaction.regex": "nothing",
    "spark.sql.extensions": "evil.Extension",
    "spark.sql.variable.substitute": "true",
    "spark.submit.pyFiles": "http://127.0.0.1:9/evil.zip",
    "spark.yarn.appMasterEnv.PYTHONPATH": "/tmp/evil",
}
OUT_OF_BOUNDS = {
    "spark.driver.memory": "64g",
    "spark.executor.instances": "100000",
    "spark.executor.memory": "0",
    "spark.speculation": "maybe",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "2000000000",
    "spark.task.maxFailures": "1 --conf spark.jars=evil",
}
HARMLESS = {"spark.sql.shuffle.partitions": "7", "spark.driver.memory": "1g", "spark.sql.adaptive.enabled": "false"}


def submitted(url: str, spark: dict[str, str]) -> httpx.Response:
    """The answer to a job with these properties."""
    arguments = {"source": "/nowhere.parquet", "table": "films"}
    body = {"name": "ingest", "arguments": arguments, "table": ["films"], "spark": spark}
    return httpx.post(f"{url}/tiltyard/v1/job/submit", json=body, timeout=60)


def test_submit_with_a_property_that_is_not_on_the_list_is_refused_in_words(victim: ServerProcess) -> None:
    for name, value in {**RUNS_CODE, "spark.of.a.later.version": "1", "not.of.spark": "1"}.items():
        response = submitted(victim.url, {**HARMLESS, name: value})
        assert (response.status_code, response.json()["code"]) == (400, 13), (name, response.text)
        assert "spark_conf" in response.json()["error"]


def test_submit_with_a_property_spelled_otherwise_is_refused(victim: ServerProcess) -> None:
    [(name, value), *_] = HARMLESS.items()
    for spelled in (name.upper(), f"{name}\n", f" {name}", f"{name}\0", f"{name}=1\nspark.jars"):
        response = submitted(victim.url, {spelled: value})
        assert (response.status_code, response.json()["code"]) == (400, 13), (spelled, response.text)


def test_submit_with_a_value_out_of_its_bounds_is_refused(victim: ServerProcess) -> None:
    for name, value in OUT_OF_BOUNDS.items():
        response = submitted(victim.url, {name: value})
        assert (response.status_code, response.json()["code"]) == (400, 13), (name, response.text)
        assert name in response.json()["error"]


def test_submit_with_sizes_and_parallelism_is_queued(victim: ServerProcess) -> None:
    response = submitted(victim.url, HARMLESS)
    assert response.is_success and response.json()["job"]["spark"] == HARMLESS
