"""The command `tiltyard`. Each command imports what it needs when it runs: `--help` answers at once."""

from __future__ import annotations

from typing import Any

import click

from tiltyard import __version__
from tiltyard.cli.access_commands import can, grant, grants, revoke, role, whoami
from tiltyard.cli.interruption import Commands
from tiltyard.cli.key_commands import key, principal
from tiltyard.cli.options import DATABASE, settings_options
from tiltyard.cli.policy_commands import policy
from tiltyard.config import Settings
from tiltyard.runtime.fatal import refuse

SERVE = (
    *("root", "db", "host", "port", "workers", "jobs", "spark"),
    *("auth", "insecure", "tls_certificate", "tls_key"),
    *("retention_days", "log_level"),
)
WORKER = ("root", "db", "jobs", "spark", "log_level")
UPKEEP = ("root", "db", "gc_safety_days")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tiltyard")
def main() -> None:
    """Tiltyard: the open server for Lance tables.

    Every option is also a variable (TILTYARD_ROOT, …) and a key of the settings file.

    Example: tiltyard serve --root ./data
    """


@main.command("serve", short_help="Run the server.")
@settings_options(*SERVE)
def serve(settings: Settings) -> None:
    """Run the server until SIGTERM or SIGINT.

    \b
    Examples:
      tiltyard serve --root ./data
      tiltyard serve --root s3://lake/tables --db postgresql://catalog@db/tiltyard --workers 4 --host 0.0.0.0 --auth
    """
    from tiltyard.runtime.lazy_imports import import_lazily

    import_lazily()
    from tiltyard.server.serve import run_server

    run_server(settings, refuse)


@main.command("worker", short_help="Run queued work, without a server.")
@settings_options(*WORKER)
def worker(settings: Settings) -> None:
    """Run queued transactions (index builds, deletions) until SIGTERM or SIGINT; any number may run at once.

    With --spark it runs jobs of the data pipeline, too, that clients have submitted.

    \b
    Examples:
      tiltyard worker --db postgresql://catalog@db/tiltyard --root s3://lake/tables --jobs 2
      tiltyard worker --db postgresql://catalog@db/tiltyard --root s3://lake/tables --spark local[8]
    """
    from tiltyard.runtime.lazy_imports import import_lazily

    import_lazily()
    from tiltyard.server.serve import run_worker

    run_worker(settings, refuse)


@main.command("undrop", short_help="Bring back what was dropped.")
@click.argument("table", required=False)
@click.option("--namespace", help="Bring back this namespace, with all that was dropped with it.")
@click.option("--as", "new_name", help="The name to have from now on.")
@click.option("--which", type=int, help="Which one, if several had the name: the number that the list shows.")
@settings_options(*DATABASE)
def undrop(
    settings: Settings, table: str | None, namespace: str | None, new_name: str | None, which: int | None
) -> None:
    """Bring back a table that was dropped or deregistered, or a namespace; without either, list what there is.

    \b
    Examples:
      tiltyard undrop --root ./data
      tiltyard undrop --root ./data films
      tiltyard undrop --root ./data 'library$books' --as 'library$books_of_may'
      tiltyard undrop --root ./data --namespace library
    """
    from tiltyard.cli.upkeep import run_undrop

    run_undrop(settings, refuse, table, namespace, new_name, which)


@main.command("gc", short_help="Remove files that nothing needs.")
@click.argument("table", required=False)
@click.option("--dry-run", is_flag=True, help="Only list them, with their sizes.")
@click.option("--keep-versions-days", type=float, help="Also remove versions that are older, tagged ones aside.")
@click.option("--unknown-folders", is_flag=True, help="Also remove folders of tables that the catalog does not know.")
@settings_options(*UPKEEP)
def gc(settings: Settings, table: str | None, **wishes: Any) -> None:
    """Remove the files of a table, or of all tables, that no version, tag or branch needs.

    Nothing younger than the safety age is removed, and nothing that an unfinished transaction or upload may own.

    \b
    Examples:
      tiltyard gc --root ./data --dry-run
      tiltyard gc --root ./data films --keep-versions-days 30
    """
    from tiltyard.cli.upkeep import run_gc

    run_gc(settings, refuse, table, **wishes)


@main.command("repair", short_help="Put right what went round the server.")
@click.argument("tables", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only say what is wrong.")
@settings_options(*UPKEEP)
def repair(settings: Settings, tables: tuple[str, ...], dry_run: bool) -> None:
    """Find what of the tables went round the server or was left half done, and put it right; without names, of all.

    \b
    Examples:
      tiltyard repair --root ./data films
      tiltyard repair --root ./data --dry-run
    """
    from tiltyard.cli.upkeep import run_repair

    run_repair(settings, refuse, tables, dry_run=dry_run)


class JobGroup(click.Group):
    """The jobs of the data pipeline, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, then those of what steers them."""
        from tiltyard.cli.job_commands import STEERING
        from tiltyard.model.jobs import pipeline_jobs

        return [*sorted(pipeline_jobs()), *STEERING]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command by its name."""
        from tiltyard.cli.job_commands import steering_command
        from tiltyard.cli.jobs import job_command

        return steering_command(name, refuse) or job_command(name, refuse)


@main.group("job", cls=JobGroup, short_help="Jobs of the data pipeline on Spark.")
def job() -> None:
    """Run jobs of the data pipeline, here or by a server's workers, and steer those that a catalog knows.

    \b
    Examples:
      tiltyard job ingest ./films.parquet films --uri http://127.0.0.1:2333
      tiltyard job ingest --help
      tiltyard job list --uri http://127.0.0.1:2333
    """


class PipelineGroup(click.Group):
    """Pipelines of several steps; what runs them is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        from tiltyard.cli.pipelines import COMMANDS

        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command by its name."""
        from tiltyard.cli.pipelines import pipeline_command

        return pipeline_command(name, refuse)


@main.group("pipeline", cls=PipelineGroup, short_help="Several tables from one file, published at once.")
def pipeline() -> None:
    """Make several tables as one YAML or Python file describes them, and publish them at once.

    \b
    Examples:
      tiltyard pipeline check docs.yaml
      tiltyard pipeline run docs.yaml --uri http://127.0.0.1:2333
    """


@main.command("audit", short_help="Show what was asked of the servers.")
@click.option("--since", help="From then on: a time (2026-05-01, 2026-05-01T12:00Z), or 30m, 12h, 7d ago.")
@click.option("--until", help="Before then; written like --since.")
@click.option("--principal", help="Asked by this principal.")
@click.option("--operation", help="This operation: CreateTable, DropTable, …")
@click.option("--object", help="About this id, or something below it.")
@click.option("--outcome", help="ok, repeated, refused, failed or cut.")
@click.option("--follow", is_flag=True, help="Go on, and show what comes.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each record.")
@settings_options(*DATABASE)
def audit(settings: Settings, **wishes: Any) -> None:
    """Show the records of calls, oldest first. Straight from the database: a server need not run.

    \b
    Examples:
      tiltyard audit --root ./data --since 12h --outcome refused
      tiltyard audit --root ./data --object 'library$books' --operation DropTable
      tiltyard audit --db postgresql://catalog@db/tiltyard --root s3://lake/tables --follow --json
    """
    from tiltyard.cli.audit import run_audit

    run_audit(settings, refuse, **wishes)


main.add_command(key)
main.add_command(principal)
for command in (grant, revoke, grants, whoami, can, role, policy):
    main.add_command(command)


@main.command("maintain", short_help="Queue the jobs that tables need.")
@click.argument("tables", nargs=-1)
@click.option("--uri", required=True, envvar="TILTYARD_URI", help="A server, or the root of a catalog.")
@click.option("--property", "properties", multiple=True, help="NAME=VALUE for the catalog's client (header.…).")
@click.option(
    "--small-fragments",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="So many small fragments are to be compacted.",
)
@click.option(
    "--unindexed",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="Such a share of rows that an index may lack.",
)
@click.option("--every", type=click.FloatRange(min=1), help="Look again every so many seconds, until SIGINT.")
@click.option("--dry-run", is_flag=True, help="Only say what is needed.")
def maintain(tables: tuple[str, ...], small_fragments: int, unindexed: float, **wishes: Any) -> None:
    """Find the tables, or look at these, that need compaction, or whose indexes lack rows, and queue `optimize`.

    Views that refresh by themselves are refreshed. A server's workers run the jobs; one that waits or runs already is
    not queued again.

    \b
    Examples:
      tiltyard maintain --uri http://127.0.0.1:2333 --dry-run
      tiltyard maintain --uri http://127.0.0.1:2333 films --every 3600
    """
    from tiltyard.cli.maintenance import run_maintain
    from tiltyard.pipeline.optimize.maintenance import Thresholds

    run_maintain(refuse, tables, thresholds=Thresholds(small_fragments, unindexed), **wishes)


@main.group("db", short_help="Look after the catalog's database.")
def db() -> None:
    """Look after the catalog's database.

    Example: tiltyard db upgrade --db postgresql://catalog@db/tiltyard
    """


@db.command("upgrade", short_help="Bring the database to this version of the code.")
@settings_options(*DATABASE)
def upgrade(settings: Settings) -> None:
    """Apply the migrations that the database lacks, and name them.

    \b
    Example:
      tiltyard db upgrade --root ./data
    """
    from lance_namespace.errors import LanceNamespaceError

    from tiltyard import store

    try:
        applied = store.upgrade(settings.database_url)
    except (store.StoreVersionError, LanceNamespaceError) as error:
        refuse(str(error))
    click.echo("\n".join(str(name) for name in applied) or "The database is current.")
