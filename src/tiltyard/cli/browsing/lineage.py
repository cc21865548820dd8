"""`tiltyard lineage`: what a table was made from, and what was made from a table or a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.output.cells import format_time
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.failures import CommandError, status_of
from tiltyard.cli.session.ids import IdType, TypedId, format_id
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.calls.caller import Caller

_FILE_EXTENSIONS = frozenset(
    ("parquet", "arrow", "feather", "csv", "tsv", "json", "jsonl", "ndjson", "orc", "avro", "txt", "gz", "lance")
)
_COLUMN_STEPS = ("step", "table", "column", "version", "made_from", "source_column", "how", "code", "job")
_COLUMNS = ("step", "table", "version", "made_from", "of_version", "job", "job_id", "by", "at")


class _TableOrFile(IdType):
    """The type of an argument that is a table, or with a slash in it a file or folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TypedId | str:  # type: ignore[override]  # a text, too
        """Parse the id, or make a path absolute. Raises click.BadParameter."""
        if isinstance(value, str) and "/" in value:
            return value if "://" in value else str(Path(value).absolute())
        return super().convert(value, param, ctx)


@click.command("lineage", short_help="Show what a table was made from, or what was made from it.")
@click.argument("source", metavar="TABLE", type=_TableOrFile())
@click.option("--downstream", is_flag=True, help="What was made from it: what to run again if it was wrong.")
@click.option("--column", help="Only what one column was made from, or with --downstream what was made from it.")
@click.option("--depth", type=click.IntRange(1, 20), default=3, show_default=True, help="How many steps to follow.")
@click.option("--version", type=int, help="A version: what it was made from; downstream, from it and later ones.")
@click.option("--branch", help="A branch instead of main.")
@format_option
@catalog_command
def lineage(
    catalog: Caller,
    source: TypedId | str,
    *,
    downstream: bool,
    column: str | None,
    depth: int,
    version: int | None,
    branch: str | None,
    form: OutputFormat,
) -> None:
    """Show the commits of jobs that made TABLE, with their sources; with --downstream what was made from it.

    TABLE may be a file or folder, as a path with a slash or a URI: then it is what was made from that. Tables without
    a name are those that you have no rights on, or that were dropped.

    \b
    Examples:
      tiltyard lineage library.books
      tiltyard lineage library.books --downstream --depth 5
      tiltyard lineage library.books --column title
      tiltyard lineage s3://lake/raw/books.parquet
    """
    from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

    request: dict[str, Any] = {"uri": source}
    if isinstance(source, TypedId):
        request = {"id": list(source), "direction": "downstream" if downstream else "upstream"}
    try:
        found = catalog.call("DescribeLineage", depth=depth, version=version, branch=branch, column=column, **request)
    except (TableNotFoundError, NamespaceNotFoundError) as error:
        name = ".".join(source)
        if isinstance(source, TypedId) and _looks_like_file(name):
            raise CommandError(
                f"There is no table {source}: for what was made from a file, write its path with a slash, ./{name}.",
                status_of(error),
            ) from error
        raise
    nodes = {node["key"]: node for node in found["nodes"]}
    is_upstream = "uri" not in request and not downstream
    records = [_record(edge, nodes, is_upstream=is_upstream) for edge in found["edges"]]
    if column is not None:
        records = [step for edge, record in zip(found["edges"], records, strict=True) for step in _steps(edge, record)]
    print_records(
        records, _COLUMNS if column is None else _COLUMN_STEPS, form, numbers=("step", "version", "of_version")
    )
    for why in dict.fromkeys(edge["why_unknown"] for edge in found["edges"] if edge.get("why_unknown")):
        click.echo(f"*, any column: {why}.", err=True)
    if found["is_truncated"]:
        click.echo("There is more: follow it from one of these tables, or with a greater --depth.", err=True)


def _looks_like_file(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _FILE_EXTENSIONS or Path(name).exists()


def _record(edge: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], *, is_upstream: bool) -> dict[str, Any]:
    source, target = nodes[edge["source"]], nodes[edge["target"]]
    millis = edge.get("created_at_millis")
    return {
        "step": (source if is_upstream else target)["depth"],
        "table": _name(target),
        "version": edge.get("version"),
        "made_from": _name(source),
        "of_version": edge.get("source_version"),
        "job": edge.get("job_kind"),
        "job_id": edge.get("job_id"),
        "by": edge.get("principal"),
        "at": None if millis is None else format_time(millis),
    }


def _steps(edge: Mapping[str, Any], record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a record for each column that the commit of an edge made; one without columns for a hidden table."""
    steps: list[dict[str, Any]] = edge.get("columns") or [{}]
    return [{**record, **step} for step in steps]


def _name(node: Mapping[str, Any]) -> str:
    if node.get("id"):
        branch = f" (branch {node['branch']})" if node.get("branch") else ""
        return f"{format_id(node['id'])}{branch}"
    return str(node.get("uri") or f"({node['kind']})")
