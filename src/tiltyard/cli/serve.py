"""`tiltyard serve` and `tiltyard worker`, the processes of a deployment; `tiltyard doctor`, a look before, and
`tiltyard support-bundle`, a file for those who are to look.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tiltyard.cli.options import settings_options
from tiltyard.cli.session.failures import ExitStatus
from tiltyard.config import Settings

SERVE_SETTINGS = (
    *("root", "db", "host", "port", "workers", "jobs", "spark", "sql_port", "console"),
    *("auth", "insecure", "tls_certificate", "tls_key"),
    *("retention_days", "log_level"),
)
WORKER_SETTINGS = ("root", "db", "jobs", "spark", "log_level")


@click.command("serve", short_help="Run the server.")
@settings_options(*SERVE_SETTINGS)
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

    run_server(settings)


@click.command("worker", short_help="Run queued work, without a server.")
@settings_options(*WORKER_SETTINGS)
def worker(settings: Settings) -> None:
    """Run queued transactions (index builds, deletions) until SIGTERM or SIGINT; any number of workers may run.

    With --spark it also runs the jobs of the data pipeline that clients submit.

    \b
    Examples:
      tiltyard worker --db postgresql://catalog@db/tiltyard --root s3://lake/tables --jobs 2
      tiltyard worker --db postgresql://catalog@db/tiltyard --root s3://lake/tables --spark 'local[8]'
    """
    from tiltyard.runtime.lazy_imports import import_lazily

    import_lazily()
    from tiltyard.server.serve import run_worker

    run_worker(settings)


@click.command("doctor", short_help="Find what would keep a server from working.")
@settings_options(*SERVE_SETTINGS)
def doctor(settings: Settings) -> None:
    """Look at this machine and the settings that a server is to run with; exit with status 3 if anything is wrong.

    It looks at Python, packages, Java, ports, access, descriptors, memory, disks, the database and its clock, the
    storage, and at settings that contradict each other, and says what to do. Nothing is made or changed.

    \b
    Examples:
      tiltyard doctor --root ./data
      tiltyard doctor --config tiltyard.toml
    """
    from tiltyard.server.doctor import Verdict, examine

    worst = 0
    for finding in examine(settings):
        click.echo(f"{finding.verdict:8} {finding.subject}: {finding.text}")
        if finding.advice and finding.verdict is not Verdict.OK:
            click.echo(f"{'':8} → {finding.advice}")
        worst += finding.verdict is Verdict.WRONG
    if worst:
        sys.exit(ExitStatus.NOT_WELL)


@click.command("support-bundle", short_help="Write a file from which a maintainer sees what is wrong.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--names", is_flag=True, help="With the names of objects, principals and addresses.")
@settings_options(*SERVE_SETTINGS)
def support_bundle(settings: Settings, file: Path, names: bool) -> None:
    """Write a zip archive with what a maintainer asks for: to be read, and then attached to a question.

    It has what `tiltyard doctor` says, versions, settings, the size of the catalog, recent errors, the slowest recorded
    requests, and the metrics of the server on this machine. It has no secrets, and no names without --names.

    \b
    Examples:
      tiltyard support-bundle bundle.zip --root ./data
      tiltyard support-bundle bundle.zip --config tiltyard.toml --names
    """
    from tiltyard.runtime.process import refuse
    from tiltyard.server.support_bundle import write_bundle

    try:
        missing = write_bundle(settings, file, names=names)
    except FileExistsError:
        refuse(f"{file} is there already: name a new file.")
    except OSError as error:
        refuse(f"{file} cannot be written: {error.strerror}.")
    for part, reason in missing.items():
        click.echo(f"Without {part}: {reason}")
    click.echo(f"Wrote {file}. Read it before you send it.")
