"""`tiltyard show | schema`: what a table or a namespace is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.output.cells import format_size, format_time
from tiltyard.cli.output.formats import OutputFormat, format_option, print_record, print_records
from tiltyard.cli.session.ids import TABLE, TABLE_OR_NAMESPACE, TypedId
from tiltyard.cli.session.target import catalog_command
from tiltyard.model.schemas.fields import metadata_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.calls.caller import Caller

KEY_PROPERTY = "tiltyard.primary_key"


@click.command("show", short_help="Describe a table or a namespace.")
@click.argument("object_id", metavar="ID", type=TABLE_OR_NAMESPACE)
@format_option
@catalog_command
def show(catalog: Caller, object_id: TypedId, form: OutputFormat) -> None:
    """Describe a table (rows, bytes, versions, indexes, tags, branches, properties), or a namespace.

    \b
    Examples:
      tiltyard show library.books
      tiltyard show library --format json
    """
    print_record(describe_object(catalog, object_id, is_readable=form is OutputFormat.TABLE), form)


def describe_object(catalog: Caller, object_id: TypedId, *, is_readable: bool) -> dict[str, Any]:
    """Return the description of a table or of a namespace, for people or for programs.

    Raises lance_namespace.errors: TableNotFoundError where it is neither.
    """
    from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

    if not object_id:
        return _describe_namespace(catalog, object_id)
    try:
        return _describe_table(catalog, object_id, is_readable=is_readable)
    except TableNotFoundError as error:
        try:
            return _describe_namespace(catalog, object_id)
        except NamespaceNotFoundError:
            raise error from None


def _describe_table(catalog: Caller, table: TypedId, *, is_readable: bool) -> dict[str, Any]:
    from lance_namespace.errors import InvalidTableStateError, PermissionDeniedError

    names = list(table)
    described = catalog.call("DescribeTable", id=names, load_detailed_metadata=True)
    properties = described.get("properties") or {}
    record: dict[str, Any] = {"id": str(table), "kind": "table", "location": described.get("location")}
    for age in catalog.call("ListTableAges", table="$".join(table))["tables"]:
        record |= {"max_age_seconds": age["max_age_seconds"], "stale": age["stale"]}
    try:
        stats = catalog.call("GetTableStats", id=names)
    except InvalidTableStateError:  # it has no rows yet, or is a view, which has none of its own
        return {**record, "kind": "table without rows, or view", "properties": properties}
    except PermissionDeniedError as error:
        return {**record, **_describe_visible(catalog, table, described), "left_out": str(error)}
    newest = catalog.call("ListTableVersions", id=names, descending=True, limit=1)["versions"][0]
    tags = catalog.call("ListTableTags", id=names)["tags"]
    branches = catalog.call("ListTableBranches", id=names)["branches"]
    indexes = catalog.call("ListTableIndices", id=names)["indexes"]
    return {
        **record,
        "version": newest["version"],
        "written": format_time(newest.get("timestamp_millis")),
        "rows": stats["num_rows"],
        "bytes": format_size(stats["total_bytes"]) if is_readable else stats["total_bytes"],
        "fragments": stats["fragment_stats"]["num_fragments"],
        "columns": len((described.get("schema") or {}).get("fields") or ()),
        "primary_key": primary_key(described),
        "indexes": [_describe_index(index) for index in indexes] if is_readable else indexes,
        "tags": {name: tag["version"] for name, tag in tags.items()},
        "branches": sorted(branches),
        "properties": properties,
    }


def _describe_visible(catalog: Caller, table: TypedId, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a table by one who may not see its statistics: because of policies, or of grants."""
    from lance_namespace.errors import PermissionDeniedError

    record = {"version": described.get("version"), "primary_key": primary_key(described)}
    try:
        record["rows"] = catalog.call("CountTableRows", id=list(table))
        record["columns"] = len(readable_columns(catalog, table))
    except PermissionDeniedError:
        record["columns"] = len((described.get("schema") or {}).get("fields") or ())
    return {**record, "properties": described.get("properties") or {}}


def _describe_index(index: Mapping[str, Any]) -> str:
    unindexed = index.get("num_unindexed_rows")
    late = f", {unindexed} rows not indexed yet" if unindexed else ""
    return (
        f"{index['index_name']} ({index.get('index_type') or index['status']} on {', '.join(index['columns'])}{late})"
    )


def _describe_namespace(catalog: Caller, namespace: TypedId) -> dict[str, Any]:
    from tiltyard.cli.session.catalog import list_namespaces, list_tables

    described = catalog.call("DescribeNamespace", id=list(namespace)) if namespace else {}
    return {
        "id": str(namespace),
        "kind": "namespace",
        "namespaces": sum(1 for _ in list_namespaces(catalog, namespace)),
        "tables": sum(1 for _ in list_tables(catalog, namespace)),
        "properties": described.get("properties") or {},
    }


def primary_key(described: Mapping[str, Any]) -> list[str]:
    """Return the columns of the enforced primary key of a table, from its description; none without a key."""
    text = (described.get("properties") or {}).get(KEY_PROPERTY)
    return [str(name) for name in json.loads(text)] if text else []


@click.command("schema", short_help="Show the columns of a table.")
@click.argument("table", type=TABLE)
@click.option("--version", help="A version, or a tag, instead of the newest version.")
@click.option("--branch", help="A branch instead of main.")
@format_option
@catalog_command
def schema(catalog: Caller, table: TypedId, version: str | None, branch: str | None, form: OutputFormat) -> None:
    """Show the columns of a table with their types, nested ones by their paths, and their metadata.

    \b
    Example:
      tiltyard schema library.books --version 3
    """
    records = list(schema_records(visible_schema(catalog, table, version, branch)))
    print_records(records, ("column", "type", "nullable", "metadata"), form)


def read_schema(catalog: Caller, table: TypedId, version: str | None = None, branch: str | None = None) -> pa.Schema:
    """Return the schema of a table. Raises lance_namespace.errors, CommandError."""
    from tiltyard.calls.searches import resolve_version
    from tiltyard.model.schemas.arrow_json import from_json

    number = resolve_version(catalog, table, version)
    described = catalog.call(
        "DescribeTable", id=list(table), version=number, branch=branch, load_detailed_metadata=True
    )
    return from_json(described.get("schema") or {"fields": []})


def readable_columns(
    catalog: Caller, table: TypedId, version: str | None = None, branch: str | None = None
) -> pa.Schema:
    """Return the columns of a table that the caller may read, as QueryTable has them: none that a policy hides.

    Raises lance_namespace.errors, CommandError.
    """
    from tiltyard.calls.searches import resolve_version

    return catalog.readable_schema(table, resolve_version(catalog, table, version), branch)


def visible_schema(catalog: Caller, table: TypedId, version: str | None = None, branch: str | None = None) -> pa.Schema:
    """Return the schema of a table without columns that a policy hides from the caller. Raises as `read_schema`."""
    from lance_namespace.errors import InvalidTableStateError, PermissionDeniedError

    schema = read_schema(catalog, table, version, branch)
    try:
        names = set(readable_columns(catalog, table, version, branch).names)
    except (InvalidTableStateError, PermissionDeniedError):  # it has no rows, or they are not the caller's to read
        return schema
    for name in set(schema.names) - names:
        schema = schema.remove(schema.get_field_index(name))
    return schema


def schema_records(schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """Yield a record for each column and each field within one."""
    for field in schema:
        yield from _field_records(field, "")


def _field_records(field: pa.Field, prefix: str) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    path = f"{prefix}{field.name}"
    metadata = metadata_texts(field.metadata)
    yield {"column": path, "type": str(field.type), "nullable": field.nullable, "metadata": metadata or None}
    kind = field.type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _field_records(inner, f"{path}.")
