"""The settings by which Spark has a catalog (tests.conformance.lance_spark runs Spark with them)."""

from __future__ import annotations

import pytest

from tests.cli.conftest import printed, refused, run_command

SERVER = "http://127.0.0.1:2333"


def test_settings_are_options_without_the_key_or_a_file_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILTYARD_KEY", "se cret")
    options = printed(run_command("spark-conf", "--server", SERVER, "--catalog", "shop"))
    assert options.splitlines()[2:] == [
        "--conf spark.sql.catalog.shop=org.lance.spark.LanceNamespaceSparkCatalog \\",
        "--conf spark.sql.catalog.shop.impl=rest \\",
        f"--conf spark.sql.catalog.shop.uri={SERVER} \\",
        "--conf spark.sql.catalog.shop.header.x-api-key=YOUR_KEY",
    ]
    file = printed(run_command("spark-conf", "--server", SERVER, "--file")).splitlines()
    assert f"spark.sql.catalog.lake.uri={SERVER}" in file
    assert file[-1] == "spark.sql.catalog.lake.header.x-api-key=se\\u0020cret"


def test_root_and_bad_names_are_refused() -> None:
    assert "by its server" in refused(run_command("spark-conf", "--root", "here"), 2)
    assert "--catalog" in refused(run_command("spark-conf", "--server", SERVER, "--catalog", "a.b"), 2)
