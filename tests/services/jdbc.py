"""JDBC drivers, by Maven, and Java programs that use that of Arrow Flight SQL."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.services.jvm import OPTIONS

DRIVER = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
POSTGRESQL_DRIVER = "org.postgresql:postgresql:42.7.7"


def jdbc_driver(driver: str = DRIVER) -> Path:
    """Return the path of a driver's jar in Maven's cache. Skips the test where Maven is missing or fails."""
    group, name, version = driver.split(":")
    jar = Path.home() / ".m2" / "repository" / group.replace(".", "/") / name / version / f"{name}-{version}.jar"
    if jar.exists():
        return jar
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Java and Maven, which bring the JDBC driver, are not here")
    command = ["mvn", "--quiet", "dependency:get", "-Dtransitive=false", f"-Dartifact={driver}"]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=280)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"Maven does not bring the JDBC driver: {error}")
    return jar


def run_with_driver(driver: Path, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Java program of one file with the driver on its class path."""
    command = ["java", *OPTIONS.split(), "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", str(driver), str(program)]
    return subprocess.run([*command, *arguments], check=False, capture_output=True, text=True, timeout=240)
