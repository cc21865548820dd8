"""`tiltyard spark-conf`: the settings by which Spark has a catalog's tables, through the connector lance-spark."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.target import target_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.cli.session.target import CatalogTarget

CONNECTOR = "org.lance:lance-spark-3.5_2.12:0.4.0"
"""The connector that Tiltyard is tested with; its name has the versions of Spark and Scala that it is for."""
HIDDEN_KEY = "YOUR_KEY"
_CATALOG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


@click.command("spark-conf", short_help="Print the settings by which Spark SQL has this catalog.")
@click.option("--catalog", "name", default="lake", show_default=True, metavar="NAME", help="Its name in Spark SQL.")
@click.option("--connector", default=CONNECTOR, show_default=True, metavar="MAVEN", help="The connector to load.")
@click.option("--file", "is_file", is_flag=True, help="As a file for spark-sql --properties-file, with the key.")
@target_options
def spark_conf(target: CatalogTarget, name: str, connector: str, is_file: bool) -> None:
    """Print Spark's settings for the server: `lake.shop.orders` is the table `orders` of the namespace `shop` then.

    By default as options of a command, without the key, since anybody on the machine sees a command. With --file the
    key is in it: keep the file to yourself.

    \b
    Examples:
      tiltyard spark-conf --server http://127.0.0.1:2333
      (umask 077; tiltyard spark-conf --file > lake.conf); spark-sql --properties-file lake.conf
    """
    if not target.url:
        raise CommandError("Spark reaches a catalog by its server: name one (--server URL).", ExitStatus.USAGE)
    if not _CATALOG_NAME.fullmatch(name):
        raise CommandError("--catalog has up to 64 letters, digits and underscores.", ExitStatus.USAGE)
    settings = {"spark.jars.packages": connector, **catalog_settings(name, target.url, target.key)}
    if is_file:
        from tiltyard.model.settings.spark_properties import to_java_properties

        click.echo(to_java_properties(settings), nl=False)
        return
    if target.key:
        settings[f"spark.sql.catalog.{name}.header.x-api-key"] = HIDDEN_KEY
    click.echo(" \\\n".join(f"--conf {shlex.quote(f'{key}={value}')}" for key, value in settings.items()))


def catalog_settings(name: str, url: str, key: str = "") -> Mapping[str, str]:
    """Return Spark's settings for the catalog of a server; with `key` requests carry it."""
    prefix = f"spark.sql.catalog.{name}"
    return {
        "spark.sql.extensions": "org.lance.spark.extensions.LanceSparkSessionExtensions",
        prefix: "org.lance.spark.LanceNamespaceSparkCatalog",
        f"{prefix}.impl": "rest",
        f"{prefix}.uri": url,
        **({f"{prefix}.header.x-api-key": key} if key else {}),
    }
