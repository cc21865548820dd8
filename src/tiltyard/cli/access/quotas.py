"""`tiltyard quota …` and `tiltyard usage`: limits of principals and namespaces, and what these use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.access.grants import parse_object
from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import catalog_options
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.target import CatalogTarget, opened_catalog
from tiltyard.model.quotas import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

subject_option = click.option(
    "--on",
    "subject",
    required=True,
    metavar="SUBJECT",
    help="Whose quota it is: principal:ann, or namespace:sales$eu with all below it; 'namespace:' is all.",
)
resource_argument = click.argument("resource", type=click.Choice([each.value for each in Resource]))


@click.group("quota", cls=CommandGroup, short_help="Limit what principals and namespaces may use.")
def quota() -> None:
    """Limit what a principal, or a namespace with all below it, may use.

    Above the soft limit there is a warning, at the hard one further use is refused.

    \b
    Examples:
      tiltyard quota set bytes --on namespace:sales --soft 800000000 --hard 1000000000 --root ./data
      tiltyard quota set requests_per_minute --on principal:ann --hard 600 --root ./data
      tiltyard quota list --url https://lake.example.org
    """


@quota.command("set", short_help="Set a quota, or change its limits.")
@resource_argument
@subject_option
@click.option("--soft", type=click.IntRange(0), help="What is warned of.")
@click.option("--hard", type=click.IntRange(0), help="What is refused.")
@catalog_options
def set_quota(target: CatalogTarget, resource: str, subject: str, soft: int | None, hard: int | None) -> None:
    """Set how much of RESOURCE a principal or a namespace may use; a limit that is left out is none.

    \b
    Example:
      tiltyard quota set tables --on namespace:sales --hard 1000 --root ./data
    """
    with opened_catalog(target) as calls:
        entry = calls.call("SetQuota", **_subject_fields(subject), resource=resource, soft=soft, hard=hard)["quota"]
    click.echo(f"{subject}: {resource} {entry['used']} used of {_limits(entry)}")


@quota.command("drop", short_help="Drop a quota.")
@resource_argument
@subject_option
@catalog_options
def drop_quota(target: CatalogTarget, resource: str, subject: str) -> None:
    """Drop the quota of RESOURCE that a principal or a namespace has.

    \b
    Example:
      tiltyard quota drop tables --on namespace:sales --root ./data
    """
    with opened_catalog(target) as calls:
        calls.call("DropQuota", **_subject_fields(subject), resource=resource)
    click.echo(f"{subject} has no quota of {resource} any more")


@quota.command("list", short_help="List quotas, and what is used of them.")
@format_option
@catalog_options
def list_quotas(target: CatalogTarget, form: OutputFormat) -> None:
    """List the quotas that you may see, with what is used of them; the state says which limit is reached.

    \b
    Example:
      tiltyard quota list --root ./data --format csv
    """
    with opened_catalog(target) as calls:
        entries = calls.call("ListQuotas")["quotas"]
    columns = ("subject", "resource", "used", "soft", "hard", "state")
    print_records([{**entry, "subject": _format_subject(entry)} for entry in entries], columns, form)


@click.command("usage", short_help="Tell who has used what.")
@click.option("--days", type=click.IntRange(1, 92), default=1, show_default=True, help="Of so many days, today too.")
@click.option("--stored", "is_stored", is_flag=True, help="Instead, what each has stored by now: tables and bytes.")
@format_option
@catalog_options
def usage(target: CatalogTarget, days: int, is_stored: bool, form: OutputFormat) -> None:
    """Tell who has sent how many requests and written how many rows, by day (UTC) and namespace; who has stored what.

    \b
    Examples:
      tiltyard usage --days 31 --format csv --root ./data > usage.csv
      tiltyard usage --stored --url https://lake.example.org
    """
    with opened_catalog(target) as calls:
        told = calls.call("ListUsage", days=days)
    entries = told["stored" if is_stored else "days"]
    counted = ("tables", "bytes") if is_stored else ("requests", "rows_written")
    columns = ("principal", "namespace", *counted) if is_stored else ("day", "principal", "namespace", *counted)
    print_records([{**entry, "namespace": "$".join(entry.get("namespace") or ())} for entry in entries], columns, form)


def _subject_fields(subject: str) -> dict[str, Any]:
    """Return the fields of a request that name whose quota it is. Raises click.UsageError."""
    kind, _, name = subject.partition(":")
    if kind == "principal" and name:
        return {"principal": name}
    if subject.startswith("namespace:"):
        return {"namespace": parse_object(subject)["id"] if name else []}
    raise click.UsageError(f"'{subject}' is no subject of a quota: write principal:ann or namespace:sales.")


def _format_subject(entry: Mapping[str, Any]) -> str:
    if entry.get("principal"):
        return f"principal:{entry['principal']}"
    return f"namespace:{'$'.join(entry.get('namespace') or ())}"


def _limits(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {entry[name]}" for name in ("soft", "hard") if entry.get(name) is not None)
