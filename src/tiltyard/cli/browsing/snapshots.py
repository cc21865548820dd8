"""`tiltyard snapshot`: named sets of versions over tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import confirm, yes_option
from tiltyard.cli.output.cells import format_time
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import CatalogTarget, catalog_command, opened_lake, target_options

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller


@click.group("snapshot", cls=CommandGroup, short_help="Name a set of versions over tables.")
def snapshot() -> None:
    """Create, list, compare, restore and drop snapshots: named, immutable sets of versions over tables.

    \b
    Example:
      tiltyard snapshot create 2026-11-release films shop.orders
    """


@snapshot.command("create", short_help="Name the present versions of tables.")
@click.argument("name")
@click.argument("tables", metavar="TABLE…", nargs=-1, required=True, type=TABLE)
@click.option("--at", "moment", metavar="TIME", help="The versions that were the newest then: a time, or 12h for ago.")
@catalog_command
def create(catalog: Caller, name: str, tables: tuple[TypedId, ...], moment: str | None) -> None:
    """Give the newest versions of TABLES, all as of one moment, the name NAME.

    With --at they are the versions that were the newest at a time, which is local without a zone. Each table gets a tag
    of that name, so that --version NAME reads it. The versions are kept until the snapshot is dropped.

    \b
    Example:
      tiltyard snapshot create 2026-11-release films shop.orders
      tiltyard snapshot create january films shop.orders --at 2026-02-01T00:00Z
    """
    from tiltyard.cli.access.audit import parse_time

    names = [list(table) for table in tables]
    made = catalog.call("CreateSnapshot", name=name, tables=names, at_millis=parse_time(moment))["snapshot"]
    click.echo(f"{name} has {', '.join(_members(made))}")


@snapshot.command("list", short_help="List the snapshots.")
@format_option
@catalog_command
def list_snapshots(catalog: Caller, form: OutputFormat) -> None:
    """List the snapshots with their tables and versions.

    \b
    Example:
      tiltyard snapshot list --format jsonl
    """
    records = [
        {
            "name": each["name"],
            "created": format_time(each["created_at_millis"]),
            "by": each["created_by"],
            "tables": ", ".join(_members(each)),
        }
        for each in catalog.entries("ListSnapshots", "snapshots")
    ]
    print_records(records, ("name", "created", "by", "tables"), form)


@snapshot.command("diff", short_help="Compare two snapshots.")
@click.argument("old")
@click.argument("new")
@format_option
@target_options
def diff(target: CatalogTarget, old: str, new: str, form: OutputFormat) -> None:
    """Show which tables the snapshots OLD and NEW have, and how many rows each version between them changed.

    \b
    Example:
      tiltyard snapshot diff 2026-10-release 2026-11-release
    """
    with opened_lake(target) as lake:
        from tiltyard.lake.snapshots import find_snapshot

        compared = find_snapshot(lake, old).diff(find_snapshot(lake, new))
        records: list[dict[str, Any]] = [{"table": name, "change": "table added"} for name in compared.added]
        records += [{"table": name, "change": "table removed"} for name in compared.removed]
        for name, changes in compared.changed.items():
            for version, kinds in changes.counts().items():
                records += [
                    {"table": name, "version": version, "change": kind, "rows": rows} for kind, rows in kinds.items()
                ]
        print_records(records, ("table", "version", "change", "rows"), form, numbers=("version", "rows"))


@snapshot.command("restore", short_help="Make all tables what a snapshot has.")
@click.argument("name")
@yes_option
@target_options
def restore(target: CatalogTarget, name: str, is_confirmed: bool) -> None:
    """Make all tables of the snapshot NAME again what it has, in one commit over all of them.

    \b
    Example:
      tiltyard snapshot restore 2026-11-release --yes
    """
    with opened_lake(target) as lake:
        from tiltyard.lake.snapshots import find_snapshot

        stored = find_snapshot(lake, name)
        tables = ", ".join(f"{table} version {version}" for table, version in stored.tables.items())
        confirm(f"Each table gets a new version as in {name}: {tables}. Go on?", is_confirmed=is_confirmed)
        versions = stored.restore()
        click.echo(f"As {name} had them: {', '.join(f'{table} (version {each})' for table, each in versions.items())}")


@snapshot.command("drop", short_help="Drop a snapshot.")
@click.argument("name")
@catalog_command
def drop(catalog: Caller, name: str) -> None:
    """Drop a snapshot with its tags; its versions stay until old versions are cleaned up.

    \b
    Example:
      tiltyard snapshot drop 2026-10-release
    """
    catalog.call("DropSnapshot", name=name)
    click.echo(f"The snapshot {name} is dropped")


def _members(facts: dict[str, Any]) -> list[str]:
    return [f"{TypedId(table['id'])} version {table['version']}" for table in facts["tables"]]
