"""`tiltyard classify`: what namespaces, tables and columns hold, and what that hides from whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.ids import COLUMN, TABLE, TABLE_OR_NAMESPACE, TypedId, format_id
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tiltyard.calls.caller import Caller

_FIELDS = ("object", "column", "classification", "inherited_from", "set_by")
_POLICY_FIELDS = ("name", "classification", "shows", "exempt", "set_by")


@click.group("classify", cls=CommandGroup, short_help="Say what tables and columns hold, and mask by that.")
def classify() -> None:
    """Classify namespaces, tables and columns (pii=email), find what is classified, and set policies by that.

    \b
    Examples:
      tiltyard classify set shop.people pii=email --column mail
      tiltyard classify set-policy mails pii=email --mask "md5(value())" --exempt support
      tiltyard classify find pii
    """


def _object_options(command: Callable[..., None]) -> Callable[..., None]:
    column = click.option("--column", type=COLUMN, help="A column of the table, or a field in one by its path.")
    namespace = click.option("--namespace", "is_namespace", is_flag=True, help="OBJECT is a namespace, not a table.")
    argument = click.argument("table", metavar="OBJECT", type=TABLE_OR_NAMESPACE)
    return argument(namespace(column(command)))


@classify.command("set", short_help="Classify a namespace, a table or a column.")
@_object_options
@click.argument("classification", metavar="KEY[=VALUE]")
@catalog_command
def set_classification(
    catalog: Caller, table: TypedId, classification: str, column: str | None, is_namespace: bool
) -> None:
    """Set KEY of a table, a column or a namespace, in place of an earlier value; what lies below inherits it.

    \b
    Examples:
      tiltyard classify set shop.people pii=email --column mail
      tiltyard classify set shop region=eu --namespace
    """
    from tiltyard.model.classifications import format_classification, parse_classification

    key, value = parse_classification(classification)
    catalog.call("SetClassification", **_named(table, column, is_namespace), key=key, value=value)
    click.echo(f"{_shown(table, column)} is classified {format_classification(key, value)}")


@classify.command("unset", short_help="Take a classification away.")
@_object_options
@click.argument("key", metavar="KEY")
@catalog_command
def unset_classification(catalog: Caller, table: TypedId, key: str, column: str | None, is_namespace: bool) -> None:
    """Unset KEY of a table, a column or a namespace itself; what is inherited from above stays.

    \b
    Example:
      tiltyard classify unset shop.people pii --column mail
    """
    catalog.call("UnsetClassification", **_named(table, column, is_namespace), key=key)
    click.echo(f"{_shown(table, column)} is not classified by {key} any more")


@classify.command("list", short_help="List what an object is classified as.")
@click.argument("table", metavar="OBJECT", type=TABLE_OR_NAMESPACE)
@click.option("--namespace", "is_namespace", is_flag=True, help="OBJECT is a namespace, not a table.")
@format_option
@catalog_command
def list_classifications(catalog: Caller, table: TypedId, is_namespace: bool, form: OutputFormat) -> None:
    """List what a table with its columns, or a namespace, is classified as, and where it inherits that from.

    \b
    Example:
      tiltyard classify list shop.people
    """
    answer = catalog.call("ListClassifications", **_named(table, None, is_namespace))
    print_records([_record(each) for each in answer["classifications"]], _FIELDS, form)
    for each in answer.get("unknown_sources") or ():
        click.echo(f"columns may be made from any of {format_id(each)}: the lineage is not known", err=True)


@classify.command("find", short_help="Find what is classified.")
@click.argument("classification", metavar="KEY[=VALUE]")
@format_option
@catalog_command
def find_classified(catalog: Caller, classification: str, form: OutputFormat) -> None:
    """Find the namespaces, tables and columns with a KEY, of those that you can use. What they pass on is not listed.

    \b
    Examples:
      tiltyard classify find pii
      tiltyard classify find pii=email
    """
    from tiltyard.model.classifications import parse_classification

    key, value = parse_classification(classification)
    fields: dict[str, Any] = {"key": key, "value": value if "=" in classification else None}
    print_records(
        [_record(each) for each in catalog.entries("FindClassified", "classifications", **fields)], _FIELDS, form
    )


@classify.command("suggest", short_help="Propose what columns may hold.")
@click.argument("table", type=TABLE)
@click.option(
    "--rows", type=click.IntRange(min=1), default=1_000, show_default=True, metavar="N", help="Rows that are sampled."
)
@format_option
@catalog_command
def suggest(catalog: Caller, table: TypedId, rows: int, form: OutputFormat) -> None:
    """Propose classifications of the columns of TABLE, by forms in a sample of rows and by names. Nothing is set.

    Forms are addresses of mail, IBANs, card numbers (with their check digit), IP addresses and phone numbers.

    \b
    Example:
      tiltyard classify suggest shop.people --rows 10000
    """
    from tiltyard.calls.suggested_classifications import suggest_classifications
    from tiltyard.model.classifications import format_classification

    records = [
        {
            "column": each.column,
            "classification": format_classification(each.key, each.value),
            "found": each.found,
            "sampled": each.sampled,
            "name": "says so" if each.is_named else "",
        }
        for each in suggest_classifications(catalog, list(table), rows)
    ]
    print_records(records, ("column", "classification", "found", "sampled", "name"), form)


@classify.command("set-policy", short_help="Mask or filter all that has a classification.")
@click.argument("name")
@click.argument("classification", metavar="KEY[=VALUE]")
@click.option("--hide", "is_hidden", is_flag=True, help="Leave the columns out.")
@click.option("--null", "is_null", is_flag=True, help="Show nulls in the columns.")
@click.option("--mask", "expression", metavar="SQL", help="Show this in the columns of text; value() is the column.")
@click.option("--filter", "row_filter", metavar="SQL", help="Show the rows for which this is true; see docs.")
@click.option(
    "--exempt", "exempt_roles", multiple=True, metavar="ROLE", help="A role that it does not bind; repeatable."
)
@catalog_command
def set_policy(
    catalog: Caller,
    name: str,
    classification: str,
    is_hidden: bool,
    is_null: bool,
    expression: str | None,
    row_filter: str | None,
    exempt_roles: tuple[str, ...],
) -> None:
    """Set the policy NAME: on all tables, what is classified KEY (with any value, or VALUE) is masked or filtered.

    It binds everybody but administrators and exempt roles.

    \b
    Examples:
      tiltyard classify set-policy mails pii=email --mask "md5(value())" --exempt support
      tiltyard classify set-policy europe region=eu --filter "in_group('eu')"
    """
    from tiltyard.model.classifications import parse_classification

    key, value = parse_classification(classification)
    kinds = {"hide": is_hidden, "null": is_null, "expression": expression is not None}
    chosen = [kind for kind, is_chosen in kinds.items() if is_chosen]
    if len(chosen) > 1:
        raise click.UsageError("--hide, --null and --mask are three kinds of a mask: give one of them.")
    catalog.call(
        "SetClassificationPolicy",
        name=name,
        key=key,
        value=value if "=" in classification else None,
        mask=chosen[0] if chosen else None,
        expression=expression,
        filter=row_filter,
        exempt_roles=list(exempt_roles),
    )
    click.echo(f"{name} binds everybody but administrators{' and ' + ', '.join(exempt_roles) if exempt_roles else ''}")


@classify.command("policies", short_help="List the policies by classifications.")
@format_option
@catalog_command
def list_policies(catalog: Caller, form: OutputFormat) -> None:
    """List the policies by classifications.

    \b
    Example:
      tiltyard classify policies
    """
    policies = catalog.call("ListClassificationPolicies")["policies"]
    print_records([_policy_record(each) for each in policies], _POLICY_FIELDS, form)


@classify.command("drop-policy", short_help="Drop a policy by a classification.")
@click.argument("name")
@catalog_command
def drop_policy(catalog: Caller, name: str) -> None:
    """Drop the policy NAME: what it hid becomes visible to those whom it bound.

    \b
    Example:
      tiltyard classify drop-policy mails
    """
    catalog.call("DropClassificationPolicy", name=name)
    click.echo(f"{name} is dropped")


def _named(table: TypedId, column: str | None, is_namespace: bool) -> dict[str, Any]:
    """Return the fields of a request that name what a command is about. Raises click.UsageError."""
    if column is not None and is_namespace:
        raise click.UsageError("--column is of a table, and --namespace says that it is none: leave one out.")
    kind = "namespace" if is_namespace else "table" if column is None else "column"
    return {"object_kind": kind, "id": list(table)} | ({} if column is None else {"column": column})


def _shown(table: TypedId, column: str | None) -> str:
    return str(table) or "the root namespace" if column is None else f"{column} of {table}"


def _record(entry: Mapping[str, Any]) -> dict[str, Any]:
    from tiltyard.model.classifications import format_classification

    origin = entry.get("inherited_from")
    column = entry.get("column")
    return {
        "object": format_id(entry.get("id") or ()),
        "column": None if column is None else f"{column} (dropped)" if entry.get("is_dropped") else column,
        "classification": format_classification(entry["key"], entry["value"]),
        "inherited_from": None if origin is None else _origin(origin),
        "set_by": entry.get("set_by"),
    }


def _origin(origin: Mapping[str, Any]) -> str:
    """Return what something is inherited from, as text; what the caller may not see has no name."""
    name = format_id(origin["id"]) if origin.get("id") is not None else f"a {origin['object_kind']} that you cannot see"
    column = f" {origin['column']}" if origin.get("column") else ""
    return f"{name}{column}{' (not known which column)' if origin.get('is_unknown') else ''}"


def _policy_record(policy: Mapping[str, Any]) -> dict[str, Any]:
    from tiltyard.model.classifications import format_classification

    shown = [f"rows where {policy['filter']}"] if policy.get("filter") is not None else []
    shown += [policy.get("expression") or policy["mask"]] if policy.get("mask") is not None else []
    value = policy.get("value")
    return {
        "name": policy["name"],
        "classification": policy["key"] if value is None else format_classification(policy["key"], value),
        "shows": "; ".join(shown),
        "exempt": ", ".join(policy["exempt_roles"]),
        "set_by": policy["set_by"],
    }
