"""A Hive Metastore 2.3 in a process of its own, for as long as a `with` block lasts: PySpark brings its jars.

Java 17 or newer has to be there. Its database is Derby, in the folder.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark

from local_server import free_port

START_SECONDS = 180

SETTINGS = {
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    # Both need classes that PySpark does not bring.
    "hive.async.log.enabled": "false",
    "datanucleus.connectionPoolingType": "none",
}


@contextmanager
def local_metastore(folder: Path) -> Iterator[str]:
    """Run a metastore that puts databases into `folder`/warehouse; gives its URI.

    Raises RuntimeError with its own words if it does not start.
    """
    folder.mkdir()
    settings = {
        **SETTINGS,
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/database;create=true",
        "hive.metastore.warehouse.dir": f"{folder}/warehouse",
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    port, log = free_port(), folder / "metastore.log"
    command = [_java(), "-Xmx512m", "-cp", f"{folder}:{Path(pyspark.__file__).parent}/jars/*"]
    command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    with log.open("wb") as output:
        metastore = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        _wait_until_listening(port, metastore, log)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        metastore.kill()
        metastore.wait()


def _java() -> str:
    """Return the program that Spark would start, too."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        raise RuntimeError("There is no Java: install version 17 or newer.")
    return java


def _wait_until_listening(port: int, metastore: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and metastore.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"The metastore did not start:\n{log.read_text()[-2000:]}")
