"""Project Nessie's server, with its Iceberg REST catalog on moto's S3; the jar comes by Maven, and needs Java 21."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.jvm import OPTIONS
from tests.services.ports import reserve_port
from tests.services.s3 import S3Server

ARTIFACT = "org.projectnessie.nessie:nessie-quarkus:0.99.0:jar:runner"
JAR = Path.home() / ".m2/repository/org/projectnessie/nessie/nessie-quarkus/0.99.0/nessie-quarkus-0.99.0-runner.jar"
WAREHOUSE = "warehouse"
OLDEST_JAVA = 21


def newer_java() -> Path | None:
    """Return a Java of the machine that is new enough; None without one."""
    for program in sorted(Path("/usr/lib/jvm").glob("*/bin/java")):
        version = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
        if (match := re.search(r'version "(\d+)', version)) and int(match[1]) >= OLDEST_JAVA:
            return program
    return None


def nessie_jar() -> Path:
    """Return the jar, from Maven's cache. Raises FileNotFoundError without Maven."""
    if not JAR.exists():
        command = ["mvn", "--quiet", "dependency:get", "-Dtransitive=false", f"-Dartifact={ARTIFACT}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=280)
    return JAR


@contextmanager
def nessie_server(folder: Path, java: Path, store: S3Server, location: str) -> Iterator[str]:
    """Run it with a warehouse at a location on S3; give the URL of its Iceberg REST catalog."""
    (port, reserved), (management, management_reserved) = reserve_port(), reserve_port()
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": WAREHOUSE,
        f"nessie.catalog.warehouses.{WAREHOUSE}.location": location,
        f"{s3}.endpoint": f"{store.endpoint}/",
        f"{s3}.path-style-access": "true",
        f"{s3}.region": "us-east-1",
        f"{s3}.access-key": "urn:nessie-secret:quarkus:my-secrets.s3",
        "my-secrets.s3.name": "testing",
        "my-secrets.s3.secret": "testing",
    }
    flags = [f"-D{key}={value}" for key, value in settings.items()]
    with (folder / "nessie.log").open("ab") as log:
        command = [str(java), "-Xmx700m", *OPTIONS.split(), *flags, "-jar", str(nessie_jar())]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/iceberg"
        wait_for_nessie(url, process, folder)
        yield url
    finally:
        process.kill()
        process.wait(30)
        reserved.close()
        management_reserved.close()


def wait_for_nessie(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until it answers. Raises RuntimeError if it does not start."""
    until = time.monotonic() + 240
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/v1/config", timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise RuntimeError((folder / "nessie.log").read_text()[-2000:])
