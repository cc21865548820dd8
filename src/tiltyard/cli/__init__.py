"""The command `tiltyard`. Each command imports what it needs when it runs: `--help` answers at once."""

from __future__ import annotations

import importlib
from typing import Any

import click

from tiltyard import __version__
from tiltyard.cli.audit import audit
from tiltyard.cli.browsing.changes import cp, mv, rm
from tiltyard.cli.browsing.console_page import open_page
from tiltyard.cli.browsing.description import schema, show
from tiltyard.cli.browsing.diff import diff
from tiltyard.cli.browsing.listing import du, ls, tree
from tiltyard.cli.browsing.rows import count, head
from tiltyard.cli.browsing.search import search
from tiltyard.cli.browsing.sql import sql
from tiltyard.cli.browsing.versions import restore, tag, versions
from tiltyard.cli.database import db
from tiltyard.cli.grants import can, grant, grants, revoke, whoami
from tiltyard.cli.import_catalog import import_catalog
from tiltyard.cli.interruption import InterruptibleGroup
from tiltyard.cli.keys import key, principal
from tiltyard.cli.maintenance import gc, maintain, repair
from tiltyard.cli.mounts import mount
from tiltyard.cli.policies import policy
from tiltyard.cli.publish_to import publish_to
from tiltyard.cli.roles import role
from tiltyard.cli.serve import serve, worker
from tiltyard.cli.session.completion import completion
from tiltyard.cli.session.login import list_profiles, login, logout
from tiltyard.cli.transfer.export_file import export_file
from tiltyard.cli.transfer.import_file import import_file
from tiltyard.cli.undrop import undrop


class LazyGroup(click.Group):
    """A group whose commands are in a module that is imported when one is looked up.

    The module has `list_commands()`, which returns their names, and `find_command(name)`.
    """

    def __init__(self, module: str, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._module = module

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        names: list[str] = importlib.import_module(self._module).list_commands()
        return names

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command of this name, if there is one."""
        command: click.Command | None = importlib.import_module(self._module).find_command(name)
        return command


@click.group(cls=InterruptibleGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tiltyard")
def main() -> None:
    """Tiltyard: the open server for Lance tables.

    Every option is also a variable (TILTYARD_ROOT, …) and a key of the settings file.

    Example: tiltyard serve --root ./data
    """


@main.group(
    "job", cls=LazyGroup, module="tiltyard.cli.jobs", short_help="Run and manage jobs of the data pipeline on Spark."
)
def job() -> None:
    """Run jobs of the data pipeline, here or by a server's workers, and manage the jobs of a catalog.

    \b
    Examples:
      tiltyard job ingest ./films.parquet films --uri http://127.0.0.1:2333
      tiltyard job ingest --help
      tiltyard job list --uri http://127.0.0.1:2333
    """


@main.group(
    "pipeline",
    cls=LazyGroup,
    module="tiltyard.cli.pipelines",
    short_help="Create several tables from one file, and publish them at once.",
)
def pipeline() -> None:
    """Create several tables as one YAML or Python file describes them, and publish them at once.

    \b
    Examples:
      tiltyard pipeline check docs.yaml
      tiltyard pipeline run docs.yaml --uri http://127.0.0.1:2333
    """


for command in (
    *(ls, tree, du, show, schema, head, count, search, sql),
    *(versions, diff, tag, restore, cp, mv, rm, open_page),
    *(import_file, export_file, login, logout, list_profiles, completion),
    *(serve, worker, db),
    *(grant, revoke, grants, whoami, can, role, policy, key, principal, audit),
    *(mount, publish_to, import_catalog, undrop, gc, repair, maintain),
):
    main.add_command(command)
