"""`tiltyard mount add | list | alter | remove | doctor`: on a server, or on the catalog's database."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import catalog_options, parse_pairs
from tiltyard.cli.session.failures import ExitStatus
from tiltyard.cli.session.target import CatalogTarget, opened_catalog
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

URI_SETTINGS = {"dir": "root", "glue": None}
"""The setting that URI stands for, by the kind of mount, where it is not `uri`."""

settings_option = click.option(
    "--set",
    "texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the kind; of one that is a table, an entry: options.region=eu-central-1.",
)
age_option = click.option(
    "--max-age", type=click.FloatRange(0), metavar="SECONDS", help="How old what was looked up may be [default: 1]."
)
allow_option = click.option(
    "--allow",
    "locations",
    multiple=True,
    metavar="LOCATION",
    help="A folder below which its tables may be opened; without any, the server's roots alone bound them.",
)
managed_option = click.option(
    "--managed/--no-managed", default=None, help="Whether commits to its tables go through this catalog [default: no]."
)
vend_option = click.option(
    "--vend/--no-vend", default=None, help="Whether its tables are opened by credentials that it vends [default: no]."
)


@click.group("mount", cls=CommandGroup, short_help="Serve catalogs of others as namespaces.")
def mount() -> None:
    """Serve catalogs of others as namespaces.

    \b
    Example:
      tiltyard mount add lake hive thrift://metastore:9083 --root ./data
    """


@mount.command("add", short_help="Mount another catalog as a namespace.")
@click.argument("name")
@click.argument("kind")
@click.argument("uri", required=False)
@settings_option
@age_option
@allow_option
@managed_option
@vend_option
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property of the namespace.")
@catalog_options
def add(
    target: CatalogTarget,
    name: str,
    kind: str,
    uri: str | None,
    texts: tuple[str, ...],
    max_age: float | None,
    locations: tuple[str, ...],
    managed: bool | None,
    vend: bool | None,
    properties: tuple[str, ...],
) -> None:
    """Mount the catalog at URI as the namespace NAME, once it has answered.

    KIND is dir (URI is its folder), hive, glue (without URI), iceberg, lance, polaris or unity. A secret is a
    reference: env:TILTYARD_MOUNT_… names a variable of the server, file:PATH a file in its `mount_secrets`.

    \b
    Examples:
      tiltyard mount add lake hive thrift://metastore:9083 --root ./data
      tiltyard mount add 'eu$unity' unity https://unity.example.org/api/2.1/unity-catalog \\
        --set token=env:TILTYARD_MOUNT_UNITY --allow s3://lake/tables --url https://lake.example.org
    """
    values = settings_with_uri(kind, uri, parse_settings(texts))
    with opened_catalog(target, creates=True) as calls:
        response = calls.call(
            "MountCatalog",
            id=_parse_name(name),
            kind=kind,
            settings=values,
            max_age_millis=_milliseconds(max_age),
            allowed_locations=list(locations) or None,
            managed_versioning=managed,
            vends_credentials=vend,
            properties=parse_pairs(properties) or None,
        )
        click.echo(_format_mount(response["mount"]))


@mount.command("list", short_help="List the mounts.")
@catalog_options
def list_mounts(target: CatalogTarget) -> None:
    """List the mounts with their settings, and which of them do not answer.

    \b
    Example:
      tiltyard mount list --root ./data
    """
    with opened_catalog(target) as calls:
        for entry in calls.entries("ListMounts", "mounts"):
            click.echo(_format_mount(entry))


@mount.command("alter", short_help="Change how a mount is reached, or its limits.")
@click.argument("name")
@settings_option
@click.option("--unset", "unset", multiple=True, metavar="NAME", help="A setting to remove.")
@age_option
@allow_option
@click.option("--allow-any", is_flag=True, help="Remove the bound of --allow.")
@managed_option
@vend_option
@catalog_options
def alter(
    target: CatalogTarget,
    name: str,
    texts: tuple[str, ...],
    unset: tuple[str, ...],
    max_age: float | None,
    locations: tuple[str, ...],
    allow_any: bool,
    managed: bool | None,
    vend: bool | None,
) -> None:
    """Change settings of a mount, which has to answer with them; the others stay. --allow replaces all locations.

    \b
    Example:
      tiltyard mount alter lake --set timeout=5 --max-age 0 --root ./data
    """
    if allow_any and locations:
        raise click.UsageError("--allow and --allow-any contradict each other: choose one.")
    with opened_catalog(target) as calls:
        changed = _changed_settings(_find_mount(calls, name), parse_settings(texts), unset) if texts or unset else None
        entry = calls.call(
            "AlterMount",
            id=_parse_name(name),
            settings=changed,
            max_age_millis=_milliseconds(max_age),
            allowed_locations=list(locations) if locations or allow_any else None,
            managed_versioning=managed,
            vends_credentials=vend,
        )["mount"]
        click.echo(_format_mount(entry))
        if entry["origin"] == "settings":
            click.echo(f"{name} is in the server's settings: its next start alters it back to them.", err=True)


@mount.command("remove", short_help="Unmount a catalog.")
@click.argument("name")
@catalog_options
def remove(target: CatalogTarget, name: str) -> None:
    """Unmount a catalog, with the grants, policies and jobs of what is in it; that catalog stays as it is.

    \b
    Example:
      tiltyard mount remove lake --root ./data
    """
    with opened_catalog(target) as calls:
        calls.call("UnmountCatalog", id=_parse_name(name))
        click.echo(f"{name} is unmounted.")


@mount.command("doctor", short_help="Find what is wrong in a mounted catalog.")
@click.argument("name")
@click.option("--convert", is_flag=True, help="Convert entries through which other programs may delete files.")
@catalog_options
def doctor(target: CatalogTarget, name: str, convert: bool) -> None:
    """Say whether a mounted catalog answers, what it has, and what is wrong; exit with status 3 if anything is.

    What is wrong: entries through which DROP TABLE of Hive or Spark would delete files (managed ones), locations that
    may not be opened, two entries with one location, names that the catalog folds, folders without a Lance table.

    \b
    Example:
      tiltyard mount doctor lake --convert --root ./data
    """
    namespaces = tables = problems = 0
    contents = ""
    with opened_catalog(target) as calls:
        kind = _find_mount(calls, name)["kind"]
        for page in calls.pages("CheckMount", id=_parse_name(name), convert=convert or None):
            if not page["reachable"]:
                refuse(f"{name} ({kind}) cannot be reached: {page['outage']}")
            _show_progress("")
            for finding in page["findings"]:
                problems += not finding.get("converted")
                click.echo(_format_finding(finding, convert=convert))
            namespaces, tables = namespaces + page["namespaces"], tables + page["tables"]
            contents = f"{_format_count(namespaces, 'namespace')}, {_format_count(tables, 'Lance table')}"
            _show_progress(f"{name}: {contents} so far")
    _show_progress("")
    click.echo(f"{name} ({kind}) answers: {contents}, {_format_count(problems, 'problem')}.")
    if problems:
        sys.exit(ExitStatus.NOT_WELL)


def _show_progress(text: str) -> None:
    """Replace the line of progress on a terminal; findings are printed over it."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def parse_settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse values of --set; `a.b=text` is an entry of the table `a`. Raises click.UsageError."""
    settings: dict[str, Any] = {}
    for name, text in parse_pairs(texts).items():
        table, dot, entry = name.partition(".")
        if dot and isinstance(entries := settings.setdefault(table, {}), dict):
            entries[entry] = text
        elif not dot and name not in settings:
            settings[name] = text
        else:
            raise click.UsageError(f"'{table}' is a text and a table: write one of them.")
    return settings


def settings_with_uri(kind: str, uri: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the one that URI stands for. Raises click.UsageError for a kind that has none."""
    if uri is None:
        return dict(settings)
    setting = URI_SETTINGS.get(kind, "uri")
    if setting is None:
        raise click.UsageError(f"A catalog of the kind {kind} has no URI: use --set region=… and --set endpoint=….")
    return {setting: uri, **settings}


def _changed_settings(entry: Mapping[str, Any], changes: Mapping[str, Any], unset: tuple[str, ...]) -> dict[str, Any]:
    """Return a mount's settings after changes; a table's entries are changed one by one.

    Raises click.UsageError for one to remove that is not there.
    """
    if missing := [name for name in unset if name not in entry["settings"]]:
        raise click.UsageError(
            f"There is no setting '{missing[0]}' to remove: there are {', '.join(entry['settings'])}."
        )
    settings = {name: value for name, value in entry["settings"].items() if name not in unset}
    for name, value in changes.items():
        table = settings.get(name)
        settings[name] = {**table, **value} if isinstance(value, dict) and isinstance(table, dict) else value
    return settings


def _find_mount(calls: Caller, name: str) -> dict[str, Any]:
    path = _parse_name(name)
    found: list[dict[str, Any]] = [entry for entry in calls.entries("ListMounts", "mounts") if entry["id"] == path]
    return (
        found[0]
        if found
        else refuse(f"There is no mount {name}: `tiltyard mount list` shows all.", ExitStatus.NOT_FOUND)
    )


def _parse_name(name: str) -> list[str]:
    """Parse `a$b`. Raises InvalidInputError."""
    from tiltyard.model.ids import parse_id

    return list(parse_id(name))


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _format_mount(entry: Mapping[str, Any]) -> str:
    """Format a mount as one line; its settings have references to secrets, no secrets."""
    parts = ["$".join(entry["id"]), entry["kind"]]
    parts += [f"{name}={format_value(value)}" for name, value in entry["settings"].items()]
    parts.append(f"max-age={entry['max_age_millis'] / 1000:g}")
    parts += [f"allow={location}" for location in entry["allowed_locations"]]
    if entry["managed_versioning"]:
        parts.append("managed")
    if entry["vends_credentials"]:
        parts.append("vends credentials")
    if entry["origin"] == "settings":
        parts.append("(in the server's settings)")
    if entry.get("outage"):
        parts.append(f"does not answer: {entry['outage']}")
    return "  ".join(parts)


def _format_count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _format_finding(finding: Mapping[str, Any], *, convert: bool) -> str:
    note = {True: " It is converted.", False: "" if convert else " Convert it by --convert.", None: ""}
    return f"{'$'.join(finding['id'])}: {finding['problem']}{note[finding.get('converted')]}"


def format_value(value: Any) -> str:
    """Format a setting's value: JSON, where it is no text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
