"""Which catalog the commands of jobs work on, and where Spark runs: their options, and what these say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from tiltyard.cli.options import parse_pairs
from tiltyard.cli.session.failures import CommandError, ExitStatus, exit_on_failure
from tiltyard.config import ConfigError, load_settings
from tiltyard.model.text.typed_ids import is_server_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.calls.caller import Caller
    from tiltyard.lake import Lake
    from tiltyard.pipeline.jobs import RegisteredJob
    from tiltyard.pipeline.session import LazySession
    from tiltyard.pipeline.table_location import CatalogConnection

_CREDENTIALS = frozenset({"header.authorization", "header.x-api-key"})
"""Client properties, in lower case, that authenticate the caller: with one of them no stored key is sent."""


@dataclass(frozen=True, slots=True)
class JobTarget:
    """The catalog that a command works on, and where Spark runs: the values of `job_target_options`."""

    uri: str = ""
    profile: str = ""
    key: str = ""
    properties: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()
    master: str | None = None
    remote: str | None = None
    conf: tuple[str, ...] = ()

    def connection(self, *, creates: bool = False) -> CatalogConnection:
        """Return the connection to the catalog: by --uri, else by variables, else by the current profile.

        Exits where there is no catalog, unless the command `creates` one.
        """
        from tiltyard.pipeline.catalog_client import connection

        return connection(*self._locate(creates=creates), parse_pairs(self.storage))

    def lake(self) -> Lake:
        """Return the catalog as `tiltyard.connect` does. Exits where there is none."""
        from tiltyard.lake import connect

        uri, properties = self._locate()
        return connect(
            uri,
            properties=properties,
            storage=parse_pairs(self.storage),
            master=self.master,
            remote=self.remote,
            conf=parse_pairs(self.conf),
        )

    def calls(self, *, creates: bool = False) -> Caller:
        """Return a client of the catalog's operations for the first calls: it soon fails where the address is wrong."""

        from tiltyard.calls.caller import COMMAND_RETRY_SECONDS

        return self.connection(creates=creates).caller(COMMAND_RETRY_SECONDS)

    def session(self, job: RegisteredJob, conf: Mapping[str, str] | None = None) -> SparkSession | LazySession | None:
        """Return the Spark session, if the job needs one; `conf` is overridden by --conf. Raises SparkMissingError.

        A job that needs it for much work alone gets one that has not started.
        """
        from tiltyard.pipeline.session import LazySession, spark_session

        if not job.spark:
            return None
        config = {**(conf or {}), **parse_pairs(self.conf)}
        start = partial(spark_session, self.master, remote=self.remote, name=f"tiltyard {job.name}", config=config)
        return LazySession(start) if job.lazy else start()

    def _locate(self, *, creates: bool = False) -> tuple[str, dict[str, str]]:
        """Return the address, and the properties of the catalog's client. Exits where there is no catalog."""

        with exit_on_failure():
            uri, properties = self._choose()
            if not creates and not is_server_address(uri):
                _require_catalog(uri, properties)
        return uri, properties

    def _choose(self) -> tuple[str, dict[str, str]]:
        """Return the address, and the properties of the catalog's client. Raises CommandError."""
        from tiltyard.cli.session.target import choose_target
        from tiltyard.lake.catalog import API_KEY_PROPERTY

        properties = parse_pairs(self.properties)
        uri = self.uri or ("" if self.profile else os.environ.get("TILTYARD_URI", ""))
        if self.uri and self.profile:
            raise CommandError("--uri and --profile both say where: leave one out.", ExitStatus.USAGE)
        if uri and not is_server_address(uri):
            if self.key:
                raise CommandError("--key is for a server: name it by --uri, or --profile.", ExitStatus.USAGE)
            return uri, properties
        target = choose_target(uri, "", "", self.profile, self.key)
        has_credentials = any(name.lower() in _CREDENTIALS for name in properties)
        if target.url and target.key and not has_credentials:
            properties[API_KEY_PROPERTY] = target.key
        return target.url or target.root, properties


def _require_catalog(root: str, properties: Mapping[str, str]) -> None:
    """Raise CommandError where a root, opened with these settings, has no catalog."""
    from tiltyard.store import database_exists

    try:
        url = load_settings({"root": root, **properties}).database_url
        exists = database_exists(url)
    except (ConfigError, ValueError) as error:
        raise CommandError(str(error), ExitStatus.USAGE) from error
    if not exists:
        raise CommandError(
            f"There is no catalog at {url}: look at --uri, "
            f"or begin one with `tiltyard import FILE TABLE --root {root}`.",
            ExitStatus.NOT_FOUND,
        )


def job_catalog_options() -> list[click.Parameter]:
    """Return the options for the catalog of a JobTarget."""
    return [
        click.Option(
            ["--uri", "--server", "--root", "uri"],
            default="",
            help="URL of a server, or the root of a catalog; also TILTYARD_URI, TILTYARD_SERVER, TILTYARD_ROOT.",
        ),
        click.Option(
            ["--profile"], default="", help="A profile that `tiltyard login` has stored; also TILTYARD_PROFILE."
        ),
        click.Option(["--key"], default="", help="API key for a server; the variable TILTYARD_KEY is safer."),
        click.Option(
            ["--property", "properties"], multiple=True, help="NAME=VALUE for the catalog's client (header.…)."
        ),
    ]


def job_target_options(*, spark: bool) -> list[click.Parameter]:
    """Return the options for a JobTarget; those for Spark, where `spark`."""
    storage = click.Option(["--storage"], multiple=True, help="NAME=VALUE for the object store, in Lance's keys.")
    session = [
        click.Option(["--master"], help="Where Spark runs: local[*], spark://…, yarn, k8s://…"),
        click.Option(["--remote"], help="A Spark Connect server, sc://…"),
        click.Option(["--conf"], multiple=True, help="NAME=VALUE, a Spark property."),
    ]
    return [*job_catalog_options(), storage, *(session if spark else [])]


def execution_options() -> list[click.Parameter]:
    """Return the options for who drives a job."""
    return [
        click.Option(
            ["--submit", "submit_it"], is_flag=True, help="Queue the job for the server's workers; print its id."
        ),
        click.Option(
            ["--untracked"], is_flag=True, help="Do not record the job in the catalog: no transaction, no resuming."
        ),
    ]
