"""`tiltyard erase`: rows leave a table's versions, branches, indexes, clones and dropped copies; signed reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import confirm, yes_option
from tiltyard.cli.output.cells import format_time
from tiltyard.cli.output.formats import OutputFormat, format_option, outcome_option, print_outcome, print_records
from tiltyard.cli.output.progress import timeout_option, wait_until
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.local_work import running_here
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.calls.caller import Caller

COLUMNS = ("erasure", "table", "outcome", "requested_by", "requested_at", "reference")


class _EraseGroup(CommandGroup):
    """A group in which a word that is no command is a table: `erase people` is `erase rows people`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, `rows` where a table is named first."""
        is_table = not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        return super().resolve_command(ctx, ["rows", *args] if is_table else args)


@click.group("erase", cls=_EraseGroup, short_help="Erase rows from all versions and copies, with a report.")
def erase() -> None:
    """Erase rows of a table from all its versions, branches, tags, indexes, clones and dropped copies, and prove it.

    `tiltyard erase TABLE` is short for `tiltyard erase rows TABLE`.

    \b
    Examples:
      tiltyard erase people --where 'user = 7' --values-of mail,name --reference 'request 4711'
      tiltyard erase list
      tiltyard erase show 5b0c0f3e-1f4e-4c7e-9a52-0d7f4f3a2b11
    """


@erase.command("rows", short_help="Erase rows of a table, and wait for the report.")
@click.argument("table", type=TABLE)
@click.option("--where", required=True, metavar="FILTER", help="The rows that this SQL filter selects: user = 7.")
@click.option(
    "--values-of", default="", metavar="COLUMN,…", help="Columns whose values in these rows all files are searched for."
)
@click.option("--end-protected", is_flag=True, help="End tags and snapshots of versions that have the rows, too.")
@click.option("--supersede-tags", is_flag=True, help="Move such tags to branches with what is left of their versions.")
@click.option("--reference", default="", help="What the report says of why: the number of a request.")
@click.option("--no-wait", is_flag=True, help="Only queue it: a server's worker does it.")
@timeout_option
@yes_option
@outcome_option
@catalog_command
def rows(
    catalog: Caller,
    table: TypedId,
    where: str,
    values_of: str,
    end_protected: bool,
    supersede_tags: bool,
    reference: str,
    no_wait: bool,
    timeout: float | None,
    is_confirmed: bool,
    form: OutputFormat,
) -> None:
    """Erase the rows that --where selects, for good: no version before comes back, and no undrop.

    It asks first, with the number of rows. Old versions that have the rows end; tags and snapshots of such versions are
    named and nothing is changed, unless --end-protected says that they end, too, or --supersede-tags that tags move to
    branches with what is left of their versions. A legal hold is never passed over. It
    ends with status 0 if the report says complete, else with 1.

    \b
    Examples:
      tiltyard erase people --where 'user = 7' --values-of mail,name
      tiltyard erase people --where 'user = 7' --end-protected --yes --reference 'request 4711'
    """
    if no_wait and timeout is not None:
        raise CommandError("--timeout is of waiting: leave it out, or --no-wait.", ExitStatus.USAGE)
    number = int(catalog.call("CountTableRows", id=list(table), predicate=where))
    confirm(
        f"{number} rows of {table} with {where}, and what older versions and copies have of such rows, are erased for "
        "good. Go on?",
        is_confirmed=is_confirmed,
    )
    columns = [name.strip() for name in values_of.split(",") if name.strip()]
    queued = catalog.call(
        "EraseFromTable",
        id=list(table),
        predicate=where,
        values_of=columns or None,
        end_protected=end_protected or None,
        supersede_tags=supersede_tags or None,
        reference=reference or None,
    )["erasure_id"]
    if no_wait:
        record = {"erasure": queued, "table": str(table), "outcome": "running"}
        print_outcome(f"{queued} is queued: tiltyard erase show {queued}", record, form)
        return
    _print_ended(catalog, _wait(catalog, table, queued, timeout), form)


def _wait(catalog: Caller, table: TypedId, erasure: str, seconds: float | None) -> Mapping[str, Any]:
    """Wait until an erasure has ended; return its description. Raises CommandError."""
    found: Mapping[str, Any] = {}

    def is_done() -> bool:
        nonlocal found
        found = catalog.call("DescribeErasure", erasure_id=erasure)
        return bool(found["erasure"]["outcome"] != "running")

    def figures() -> Mapping[str, str]:
        properties: Mapping[str, str] = catalog.call("DescribeTransaction", id=[erasure]).get("properties") or {}
        return {name: text for name, text in properties.items() if name in ("stage", "bytes", "progress")}

    with running_here(catalog, [erasure]):
        if not wait_until(is_done, f"erasure from {table}", figures, seconds):
            raise CommandError(
                f"{erasure} has not ended after {seconds:g} s; it goes on, where a server or a worker runs: "
                f"tiltyard erase show {erasure}",
                ExitStatus.TIMED_OUT,
            )
    return found


def _print_ended(catalog: Caller, found: Mapping[str, Any], form: OutputFormat) -> None:
    """Print how an erasure has ended. Raises CommandError where it is not complete."""
    erasure = found["erasure"]
    if erasure["outcome"] == "stopped":
        properties = catalog.call("DescribeTransaction", id=[erasure["id"]]).get("properties") or {}
        reason = properties.get("error") or "it was canceled, or the server's log says why."
        raise CommandError(f"{erasure['id']} was stopped before its report: {reason}")
    print_outcome(_summarize(found), _record(erasure), form)
    if erasure["outcome"] != "complete":
        raise CommandError(f"It is {erasure['outcome']}: tiltyard erase show {erasure['id']} has the whole report.")


def _summarize(found: Mapping[str, Any]) -> str:
    import json

    report = json.loads(found["report"])
    lines = [f"{found['erasure']['id']}  {report['outcome']}"]
    lines += [
        f"{each['name']}: {each['rows']} rows, {each['versions_ended']} versions ended, {each['files_removed']} files "
        f"removed, {sum(each.get('files_searched', {}).values())} searched"
        for each in report["tables"]
    ]
    lines += [f"dropped: {name}" for name in report["dropped_tables_ended"]]
    lines += [f"unresolved: {text}" for text in report["unresolved"]]
    lines += [f"by hand: {text}" for text in report["to_check_by_hand"]]
    return "\n".join(lines)


@erase.command("list", short_help="List erasures.")
@format_option
@catalog_command
def list_erasures(catalog: Caller, form: OutputFormat) -> None:
    """List erasures, newest first: your own, and those of tables from which you may erase.

    \b
    Example:
      tiltyard erase list --format json
    """
    print_records([_record(each) for each in catalog.entries("ListErasures", "erasures")], COLUMNS, form)


@erase.command("show", short_help="Print the report of an erasure.")
@click.argument("erasure", metavar="ID")
@outcome_option
@catalog_command
def show(catalog: Caller, erasure: str, form: OutputFormat) -> None:
    """Print the report of an erasure, whose signature was checked; as JSON with --format json.

    \b
    Examples:
      tiltyard erase show 5b0c0f3e-1f4e-4c7e-9a52-0d7f4f3a2b11
      tiltyard erase show 5b0c0f3e-1f4e-4c7e-9a52-0d7f4f3a2b11 --format json
    """
    found = catalog.call("DescribeErasure", erasure_id=erasure)
    if not found.get("report"):
        outcome = found["erasure"]["outcome"]
        print_outcome(f"{erasure} is {outcome}, without a report", _record(found["erasure"]), form)
        return
    if not found["signature_is_valid"]:
        raise CommandError(f"The report of {erasure} is not as it was signed: it was changed since.")
    import json

    record = {"report": json.loads(found["report"]), "signature": found["signature"]}
    print_outcome(_summarize(found), record, form)


def _record(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "erasure": entry["id"],
        "table": str(TypedId(entry["table"])),
        "outcome": entry["outcome"],
        "requested_by": entry["requested_by"],
        "requested_at": format_time(entry["requested_at_millis"]),
        "reference": entry.get("reference") or "",
    }
