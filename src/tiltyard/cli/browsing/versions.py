"""`tiltyard versions | tag | restore`: the versions of a table."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import confirm, limit_option, yes_option
from tiltyard.cli.output.cells import format_time
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.failures import CommandError
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

_PAGE = 1000
_COUNTS = ("inserted", "updated", "deleted", "written", "removed")
"""What a version did to rows: one that says how many it wrote and removed cannot tell which of them are updates."""
_SHOWN_METADATA = ("operation", *(f"{name}_rows" for name in _COUNTS), "total_rows", "total_fragments")


@click.command("versions", short_help="List the versions of a table.")
@click.argument("table", type=TABLE)
@limit_option("How many, newest first.", 20, least=1)
@click.option("--branch", help="A branch instead of main.")
@format_option
@catalog_command
def versions(catalog: Caller, table: TypedId, limit: int, branch: str | None, form: OutputFormat) -> None:
    """List the newest versions of a table: what each did, to how many rows, and the tags that name them.

    \b
    Example:
      tiltyard versions library.books -n 5
    """
    request = {"id": list(table), "branch": branch, "descending": True, "load_changes": True}
    newest = catalog.entries("ListTableVersions", "versions", limit=min(_PAGE, limit), **request)
    tags = _list_tags(catalog, table)
    records = [
        {
            "version": each["version"],
            "written": format_time(each.get("timestamp_millis")),
            "tags": ", ".join(
                name
                for name, tag in tags.items()
                if tag["version"] == each["version"] and (tag.get("branch") or None) == (branch or None)
            )
            or None,
            **_describe(each.get("metadata") or {}),
        }
        for each in islice(newest, limit)
    ]
    shown = [name for name in _SHOWN_METADATA if any(record[name] is not None for record in records)]
    numbers = ("version", *(name for name in shown if name != "operation"))
    print_records(records, ("version", "written", "tags", *shown), form, numbers=numbers)


def _describe(metadata: dict[str, str]) -> dict[str, str | None]:
    """Return what is shown of a version's metadata, the operation with what it was done to."""
    operation = " ".join(filter(None, (metadata.get("operation"), metadata.get("operation_detail")))) or None
    return {name: metadata.get(name) for name in _SHOWN_METADATA} | {"operation": operation}


def _list_tags(catalog: Caller, table: TypedId) -> dict[str, Any]:
    pages = catalog.pages("ListTableTags", id=list(table))
    return {name: tag for page in pages for name, tag in page["tags"].items()}


@click.group("tag", cls=CommandGroup, short_help="Give versions of a table names.")
def tag() -> None:
    """Create, list and delete names for versions of a table.

    \b
    Example:
      tiltyard tag create library.books release 3
    """


@tag.command("create", short_help="Give a version a name.")
@click.argument("table", type=TABLE)
@click.argument("name")
@click.argument("version", required=False, type=click.IntRange(min=1))
@click.option("--branch", help="A branch instead of main.")
@click.option("--move", is_flag=True, help="Move the tag, if it exists.")
@catalog_command
def create(catalog: Caller, table: TypedId, name: str, version: int | None, branch: str | None, move: bool) -> None:
    """Give VERSION the tag NAME, the newest version without one.

    \b
    Examples:
      tiltyard tag create library.books release
      tiltyard tag create library.books release 7 --move
    """
    from lance_namespace.errors import TableTagAlreadyExistsError

    if version is None:
        version = _newest_version(catalog, table, branch)
    try:
        catalog.call("CreateTableTag", id=list(table), tag=name, version=version, branch=branch)
    except TableTagAlreadyExistsError as error:
        if not move:
            raise CommandError(f"The tag '{name}' exists already: --move moves it.") from error
        catalog.call("UpdateTableTag", id=list(table), tag=name, version=version, branch=branch)
    click.echo(f"{name} is version {version} of {table}")


def _newest_version(catalog: Caller, table: TypedId, branch: str | None) -> int:
    found = catalog.call("ListTableVersions", id=list(table), branch=branch, descending=True, limit=1)["versions"]
    if not found:
        raise CommandError(f"{table} has no version yet: write to it first.")
    return int(found[0]["version"])


@tag.command("list", short_help="List the tags of a table.")
@click.argument("table", type=TABLE)
@format_option
@catalog_command
def list_tags(catalog: Caller, table: TypedId, form: OutputFormat) -> None:
    """List the tags of a table.

    \b
    Example:
      tiltyard tag list library.books
    """
    tags = _list_tags(catalog, table)
    records = ({"tag": name, "version": each["version"], "branch": each.get("branch")} for name, each in tags.items())
    print_records(records, ("tag", "version", "branch"), form, numbers=("version",))


@tag.command("delete", short_help="Delete a tag.")
@click.argument("table", type=TABLE)
@click.argument("name")
@catalog_command
def delete(catalog: Caller, table: TypedId, name: str) -> None:
    """Delete a tag; its version stays until old versions are cleaned up.

    \b
    Example:
      tiltyard tag delete library.books release
    """
    catalog.call("DeleteTableTag", id=list(table), tag=name)
    click.echo(f"The tag {name} of {table} is deleted")


@click.command("restore", short_help="Make an older version the newest.")
@click.argument("table", type=TABLE)
@click.argument("version")
@yes_option
@catalog_command
def restore(catalog: Caller, table: TypedId, version: str, is_confirmed: bool) -> None:
    """Make a new version of a table with the rows and columns that VERSION (a number or a tag) has.

    \b
    Example:
      tiltyard restore library.books 3
    """
    from tiltyard.calls.searches import resolve_version

    number = resolve_version(catalog, table, version)
    newest = _newest_version(catalog, table, None)
    before = catalog.call("CountTableRows", id=list(table))
    after = catalog.call("CountTableRows", id=list(table), version=number)
    confirm(
        f"{table} gets a version {newest + 1} as version {number} is: {after} rows instead of {before}. "
        f"Version {newest} can be restored likewise. Go on?",
        is_confirmed=is_confirmed,
    )
    catalog.call("RestoreTable", id=list(table), version=number)
    click.echo(f"{table} is as version {number} was")
