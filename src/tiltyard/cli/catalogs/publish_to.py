"""`tiltyard publish-to add | list | sync | remove`: on a server, or on the catalog's database."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.catalogs.mounts import format_value, parse_settings, settings_option, settings_with_uri
from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import catalog_options
from tiltyard.cli.session.target import CatalogTarget, opened_catalog
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

NOT_IN_STEP = 3
"""The exit status of `sync` and `remove` where something is left to do, or a table has a problem."""
POLL_SECONDS = 1.0
"""How often a command looks how far a worker has come with what took longer than a request may."""


@click.group("publish-to", cls=CommandGroup, short_help="Register tables in other catalogs, and keep them in step.")
def publish_to() -> None:
    """Register tables in other catalogs, and keep the entries there in step with this one.

    \b
    Example:
      tiltyard publish-to add lake hive thrift://metastore:9083 --namespace films --root ./data
    """


@publish_to.command("add", short_help="Publish tables to another catalog from now on.")
@click.argument("name")
@click.argument("kind")
@click.argument("uri", required=False)
@settings_option
@click.option("--namespace", metavar="ID", help="Publish the tables in this namespace and below it; '$' for all.")
@click.option("--target", metavar="ID", help="The namespace there [default: as the tables' own].")
@click.option("--columns", is_flag=True, help="List the tables' columns in a property of their entries.")
@catalog_options
def add(
    place: CatalogTarget,
    name: str,
    kind: str,
    uri: str | None,
    texts: tuple[str, ...],
    namespace: str | None,
    target: str | None,
    columns: bool,
) -> None:
    """Publish tables to the catalog at URI from now on, once it has answered; a server's worker writes the entries.

    KIND, URI and --set are as for `tiltyard mount add`. Tables are published by --namespace, and by the property
    tiltyard.publish_to=NAME of a table or of a namespace around it.

    \b
    Examples:
      tiltyard publish-to add lake hive thrift://metastore:9083 --namespace films --target media --root ./data
      tiltyard publish-to add partners glue --set region=eu-central-1 --url https://lake.example.org
    """
    with opened_catalog(place) as calls:
        response = calls.call(
            "CreatePublication",
            publication=name,
            kind=kind,
            settings=settings_with_uri(kind, uri, parse_settings(texts)),
            namespace=_parse_id(namespace),
            target=_parse_id(target),
            columns=columns or None,
        )
        click.echo(_format_publication(response["publication"]))


@publish_to.command("list", short_help="List the catalogs that tables are published to.")
@catalog_options
def list_publications(place: CatalogTarget) -> None:
    """List the publications: what is published where, whether it is in step, and which tables have a problem.

    \b
    Example:
      tiltyard publish-to list --root ./data
    """
    with opened_catalog(place) as calls:
        for entry in calls.entries("ListPublications", "publications"):
            click.echo(_format_publication(entry))


@publish_to.command("sync", short_help="Bring the entries in another catalog in step now.")
@click.argument("name")
@catalog_options
def sync(place: CatalogTarget, name: str) -> None:
    """Bring all entries of a publication in step, looking at each; exit with status 3 if tables have a problem.

    \b
    Example:
      tiltyard publish-to sync lake --root ./data
    """
    with opened_catalog(place) as calls:
        entry = _wait(calls, calls.call("SyncPublication", publication=name)["publication"])
        if entry is None:
            refuse(f"{name} was removed meanwhile.")
        click.echo(_format_publication(entry))
        if entry["number_of_problems"]:
            sys.exit(NOT_IN_STEP)


@publish_to.command("remove", short_help="Publish to another catalog no more.")
@click.argument("name")
@click.option("--remove-entries", is_flag=True, help="Remove our entries there; without it they stay as they are.")
@catalog_options
def remove(place: CatalogTarget, name: str, remove_entries: bool) -> None:
    """Publish to another catalog no more; its entries stay there, unless they are to be removed.

    \b
    Example:
      tiltyard publish-to remove lake --remove-entries --root ./data
    """
    with opened_catalog(place) as calls:
        response = calls.call("DropPublication", publication=name, remove_entries=remove_entries or None)
        entry = _wait(calls, response.get("publication"))
        if entry is None:
            click.echo(f"{name} is removed.")
            return
        click.echo(_format_publication(entry))
        sys.exit(NOT_IN_STEP)


def _wait(calls: Caller, entry: dict[str, Any] | None) -> dict[str, Any] | None:
    """Wait until a worker has done for a publication what it can do; return that, None if it is gone."""
    while entry is not None and not entry["in_step"]:
        name = entry["publication"]
        if entry.get("outage"):
            refuse(f"{name} ({entry['kind']}) cannot be synced: {entry['outage']}")
        if entry["removing"] and entry["number_of_problems"]:
            return entry
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{entry['tables']} tables", nl=False, err=True)
        time.sleep(POLL_SECONDS)
        publications = calls.entries("ListPublications", "publications")
        entry = next((each for each in publications if each["publication"] == name), None)
    return entry


def _parse_id(text: str | None) -> list[str] | None:
    """Parse `a$b`; '$' is the root. Raises InvalidInputError."""
    from tiltyard.model.ids import parse_id

    return None if text is None else list(parse_id(text))


def _format_publication(entry: Mapping[str, Any]) -> str:
    """Format a publication as a line, and one for each problem; its settings have references to secrets, no secrets."""
    parts = [entry["publication"], entry["kind"]]
    parts += [f"{name}={format_value(value)}" for name, value in entry["settings"].items()]
    if entry.get("namespace") is not None:
        parts.append(f"namespace={'$'.join(entry['namespace']) or '$'}")
    if entry.get("target"):
        parts.append(f"target={'$'.join(entry['target'])}")
    if entry["columns"]:
        parts.append("columns")
    parts.append(f"tables={entry['tables']}")
    if entry["removing"]:
        parts.append("removing its entries")
    elif entry["in_step"]:
        parts.append("in step")
    else:
        parts.append(f"behind by {entry['lag_millis'] / 1000:.0f} s")
    if entry.get("outage"):
        parts.append(f"does not answer: {entry['outage']}")
    lines = [f"  {'$'.join(each['id'])}: {each['problem']}" for each in entry["problems"]]
    if (more := entry["number_of_problems"] - len(lines)) > 0:
        lines.append(f"  and {more} more")
    return "\n".join(["  ".join(parts), *lines])
