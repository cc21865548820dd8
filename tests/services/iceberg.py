"""The Iceberg project's own REST fixture: a catalog over SQLite, served by Jetty, with jars by Maven."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pyspark

from tests.services.jvm import CACHE, OPTIONS
from tests.services.ports import reserve_port

JARS = Path(pyspark.__file__).parent / "jars"

ARTIFACTS = (
    ("org.apache.iceberg", "iceberg-core", "1.10.1", ""),
    ("org.apache.iceberg", "iceberg-core", "1.10.1", "tests"),
    ("org.apache.iceberg", "iceberg-open-api", "1.10.1", "test-fixtures"),
    ("org.eclipse.jetty", "jetty-server", "11.0.26", ""),
    ("org.eclipse.jetty", "jetty-servlet", "11.0.26", ""),
    ("org.xerial", "sqlite-jdbc", "3.49.1.0", ""),
)
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<classifier>{}</classifier>{}</dependency>"
)
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
PROJECT = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>tests</groupId>'
    "<artifactId>iceberg</artifactId><version>1</version><dependencies>{}</dependencies></project>"
)


def fixture_class_path(folder: Path) -> str:
    """Return the fixture's class path; Maven fetches what its cache does not have, and is asked once."""
    dependencies = [
        DEPENDENCY.format(*artifact, ALONE if artifact[3] == "test-fixtures" else "") for artifact in ARTIFACTS
    ]
    project = PROJECT.format("".join(dependencies))
    known = CACHE / f"iceberg-{crc32(project.encode()):08x}.class_path"
    if not (known.exists() and all(map(os.path.exists, known.read_text().split(":")))):
        (folder / "pom.xml").write_text(project)
        known.parent.mkdir(exist_ok=True)
        new = known.with_suffix(f".{os.getpid()}")
        command = ["mvn", "--quiet", "dependency:build-classpath", f"-Dmdep.outputFile={new}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=280)
        new.rename(known)
    hadoop = ":".join(map(str, JARS.glob("hadoop-client-*.jar")))
    return f"{known.read_text()}:{hadoop}"


@contextmanager
def iceberg_fixture(folder: Path) -> Iterator[str]:
    """Run the fixture with its warehouse in a folder; give its URL."""
    port, reserved = reserve_port()
    settings = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
        "CATALOG_CATALOG__NAME": "rest_backend",
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db?busy_timeout=30000",
        "CATALOG_CLIENTS": "1",  # of two that write, SQLite refuses one
    }
    command = ["java", "-Xmx256m", *OPTIONS.split(), "-cp", fixture_class_path(folder)]
    with (folder / "fixture.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "org.apache.iceberg.rest.RESTCatalogServer"],
            env={**os.environ, **settings},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for_fixture(url, process, folder)
        yield url
    finally:
        process.kill()
        process.wait(30)
        reserved.close()


def wait_for_fixture(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until it answers. Raises RuntimeError if it does not start."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/v1/config", timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError((folder / "fixture.log").read_text()[-2000:])
