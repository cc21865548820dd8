"""The command `tiltyard`. Each command imports what it needs when it runs: `--help` answers at once."""

from __future__ import annotations

import importlib
from typing import Any

import click

from tiltyard import __version__
from tiltyard.cli.command_groups import CommandGroup, suggest_options
from tiltyard.cli.interruption import exit_on_interrupt

COMMANDS = {
    "access.grants": ("can", "grant", "grants", "policy", "revoke", "role", "whoami"),
    "access.audit": ("audit",),
    "backup": ("backup",),
    "browsing.change_feed": ("changes",),
    "browsing.changes": ("cp", "mkdir", "mv", "rm"),
    "browsing.console_page": ("open",),
    "browsing.description": ("schema", "show"),
    "browsing.diff": ("diff",),
    "browsing.listing": ("du", "ls", "tree"),
    "browsing.rows": ("count", "head"),
    "browsing.search": ("search",),
    "browsing.snapshots": ("snapshot",),
    "browsing.lineage": ("lineage",),
    "rebuild": ("rebuild",),
    "browsing.sql": ("sql",),
    "browsing.training_sets": ("training-set",),
    "events": ("events",),
    "browsing.versions": ("restore", "tag", "versions"),
    "tables.classifications": ("classify",),
    "database": ("db",),
    "freshness": ("freshness",),
    "functions": ("functions",),
    "demo": ("demo",),
    "catalogs.as_code": ("apply", "plan"),
    "catalogs.import_catalog": ("import-catalog",),
    "access.keys": ("key", "principal"),
    "upkeep": ("gc", "maintain", "repair"),
    "mcp.command": ("mcp",),
    "catalogs.mounts": ("mount",),
    "jobs.pipelines": ("pipeline", "view"),
    "access.protections": ("protect",),
    "access.quotas": ("quota", "usage"),
    "catalogs.publish_to": ("publish-to",),
    "jobs.schedules": ("schedule",),
    "serve": ("doctor", "serve", "support-bundle", "worker"),
    "tables.columns": ("add-column",),
    "tables.contracts": ("contract", "test"),
    "tables.create": ("create",),
    "tables.erasures": ("erase",),
    "tables.indexes": ("index",),
    "tables.rows": ("delete", "update"),
    "session.completion": ("completion",),
    "session.login": ("login", "logout", "profiles"),
    "session.spark_conf": ("spark-conf",),
    "transfer.export_file": ("export",),
    "transfer.import_file": ("import",),
    "undrop": ("undrop",),
}
"""The commands by the module in this package that defines them."""
_MODULES = {name: module for module, names in COMMANDS.items() for name in names}


class CommandLine(CommandGroup):
    """The root group: the module of a command is imported when the command is looked up."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments, as click does. Raises SystemExit for an interrupt."""
        with exit_on_interrupt(), suggest_options():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, as click does. Raises SystemExit for an interrupt that the command does not handle."""
        with exit_on_interrupt(), suggest_options():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*self.commands, *_MODULES})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command of this name, if there is one."""
        if name in _MODULES and name not in self.commands:
            defined = vars(importlib.import_module(f"{__name__}.{_MODULES[name]}")).values()
            self.add_command(next(each for each in defined if isinstance(each, click.Command) and each.name == name))
        return super().get_command(ctx, name)

    def load_all(self) -> dict[str, click.Command]:
        """Import all commands; return them by name."""
        ctx = click.Context(self)
        return {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}


class LazyGroup(CommandGroup):
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


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tiltyard")
def main() -> None:
    """Tiltyard: the open server for Lance tables.

    Every option is also a variable (TILTYARD_ROOT, …) and a key of the settings file.

    \b
    Examples:
      tiltyard demo
      tiltyard serve --root ./data
    """


@main.group(
    "job",
    cls=LazyGroup,
    module="tiltyard.cli.jobs.job",
    short_help="Run and manage jobs of the data pipeline on Spark.",
)
def job() -> None:
    """Run jobs of the data pipeline, here or by a server's workers, and manage the jobs of a catalog.

    \b
    Examples:
      tiltyard job ingest ./films.parquet films --uri http://127.0.0.1:2333
      tiltyard job ingest --help
      tiltyard job list --uri http://127.0.0.1:2333
    """
