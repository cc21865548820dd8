"""Spark with connectors of others: each in a process with the PySpark that it is made for, on two slots as ours.

PySpark is installed beside this environment's own at the first run, and Spark fetches the connector by its coordinates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import lance_spark
from tests.conformance.packages import install

from bench.servers import TREE
from bench.spark.line_processes import Process
from tiltyard.cli.session.spark_conf import CONNECTOR

DRIVER_MEMORY = "2g"


@dataclass(frozen=True, slots=True)
class SparkPeer:
    """A connector: its name with its versions, Maven coordinates, the PySpark to install, and its files' digests."""

    name: str
    packages: str
    requirements: Path
    folder: Path
    digests: Mapping[str, str]

    def start(self, settings: Mapping[str, str]) -> Process:
        """Start a session with these settings. Raises RuntimeError if a file is not the one that was looked at."""
        install(self.folder, self.requirements)
        own = {
            "spark.jars.packages": self.packages,
            "spark.jars.ivy": str(self.folder / "ivy"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        environ = {"PYTHONPATH": f"{self.folder / 'python'}:{TREE}", "SPARK_LOCAL_IP": "127.0.0.1"}
        process = Process("bench.spark.peer_session", json.dumps({**own, **settings}), environ=environ)
        process.ask("rows", statement="SELECT 1")
        lance_spark.check_files(self.folder, self.digests)
        return process


def _version(packages: str, requirements: Path) -> str:
    """Return the versions of a connector and of its Spark, in words."""
    spark = requirements.read_text().partition("pyspark==")[2].split()[0]
    return f"{packages.rpartition(':')[2]} on Spark {spark}"


LANCE_SPARK = SparkPeer(
    f"lance-spark {_version(CONNECTOR, lance_spark.REQUIREMENTS)}",
    CONNECTOR,
    lance_spark.REQUIREMENTS,
    lance_spark.FOLDER,
    lance_spark.SHA256,
)

_DELTA_PACKAGES = "io.delta:delta-spark_4.2_2.13:4.4.0"
_DELTA_REQUIREMENTS = Path(__file__).with_name("delta.txt")
DELTA = SparkPeer(
    f"Delta Lake {_version(_DELTA_PACKAGES, _DELTA_REQUIREMENTS)}",
    _DELTA_PACKAGES,
    _DELTA_REQUIREMENTS,
    Path(sys.prefix) / "delta-spark",
    {
        "io.delta_delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        "io.delta_delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    },
)
