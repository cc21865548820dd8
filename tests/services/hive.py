"""A Hive Metastore over an embedded Derby database: 2.3, whose jars PySpark brings, or 3.1, by Maven."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.services.jvm import OPTIONS
from tests.services.ports import reserve_port

JARS = Path(pyspark.__file__).parent / "jars"

HIVE_3_ARTIFACTS = (
    "org.apache.hive:hive-standalone-metastore:3.1.3",
    "org.apache.thrift:libthrift:0.9.3",
    "com.google.guava:guava:19.0",
    "commons-collections:commons-collections:3.2.2",
)
"""What comes before PySpark's jars; the rest of what it needs is there."""

SETTINGS = {
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "hive.async.log.enabled": "false",  # needs a class that is in none of the jars
    "datanucleus.connectionPoolingType": "none",  # the same
    "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",  # the same
}
"""For both versions; each ignores what is not its own."""


def hive_3_jars() -> list[Path]:
    """Return the jars of version 3.1, from Maven's cache. Raises FileNotFoundError without Maven."""
    repository = Path.home() / ".m2" / "repository"
    jars = []
    for artifact in HIVE_3_ARTIFACTS:
        group, name, version = artifact.split(":")
        jar = repository / group.replace(".", "/") / name / version / f"{name}-{version}.jar"
        if not jar.exists():
            command = ["mvn", "--quiet", "dependency:get", "-Dtransitive=false", f"-Dartifact={artifact}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=280)
        jars.append(jar)
    return jars


@dataclass
class HiveMetastore:
    """Where the metastore is, and where it puts databases; `kill` and `start` it again, with what it had."""

    folder: Path
    port: int
    jars: list[Path] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def start(self) -> None:
        """Start it, and wait until it listens. Raises RuntimeError if it does not start."""
        class_path = ":".join(map(str, (self.folder, *self.jars, *self._pyspark_jars())))
        command = ["java", "-Xmx512m", *OPTIONS.split(), "-cp", class_path]
        command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)]
        with (self.folder / "metastore.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        until = time.monotonic() + 180
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise RuntimeError((self.folder / "metastore.log").read_text()[-2000:])

    def _pyspark_jars(self) -> list[Path]:
        """Return PySpark's jars; without its metastore where there is another one, whose schema it would replace."""
        return [jar for jar in JARS.glob("*.jar") if not (self.jars and jar.name.startswith("hive-metastore-"))]

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)


@contextmanager
def hive_metastore(
    folder: Path, jars: list[Path] | None = None, more: Mapping[str, str] | None = None
) -> Iterator[HiveMetastore]:
    """Run a metastore with its database in a folder: version 2.3, or that of the jars; `more` are settings of Hive."""
    port, reserved = reserve_port()
    metastore = HiveMetastore(folder, port, jars or [])
    settings = {
        **SETTINGS,
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/database;create=true",
        "hive.metastore.warehouse.dir": str(metastore.warehouse),
        "metastore.warehouse.dir": str(metastore.warehouse),
        **(more or {}),
    }
    properties = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    try:
        metastore.start()
        yield metastore
    finally:
        metastore.kill()
        reserved.close()
