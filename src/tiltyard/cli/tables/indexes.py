"""`tiltyard index`: the indexes of a table."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.output.cells import format_size
from tiltyard.cli.output.formats import OutputFormat, format_option, outcome_option, print_outcome, print_records
from tiltyard.cli.output.progress import timeout_option, wait_until
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import COLUMN, INDEX, INDEX_TYPE, TABLE, TypedId, suggest
from tiltyard.cli.session.local_work import context_of, is_server, running_here
from tiltyard.cli.session.target import catalog_command
from tiltyard.model.columns.index_parameters import FLAGS, NUMBERS, PARAMETERS, STOP_WORDS, TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tiltyard.calls.caller import Caller
    from tiltyard.model.columns.index_types import IndexType


branch_option = click.option("--branch", help="A branch instead of main.")


def parameter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each parameter; the command gets them by their names, None for those that are left out."""
    options = [_parameter_option(name, text, type=click.IntRange(min=0), metavar="N") for name, text in NUMBERS.items()]
    options += [
        click.option(f"{_flag(name)}/--no-{_flag(name)[2:]}", name, default=None, help=text)
        for name, text in FLAGS.items()
    ]
    options += [_parameter_option(name, text) for name, text in TEXTS.items()]
    options.append(_parameter_option(STOP_WORDS, "FTS: words to leave out, besides.", metavar="A,B,…"))
    for add in reversed(options):
        command = add(command)
    return command


def given_parameters(values: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given, as requests have them."""
    given = {name: values[name] for name in PARAMETERS if values[name] is not None}
    if STOP_WORDS in given:
        given[STOP_WORDS] = [word.strip() for word in given[STOP_WORDS].split(",") if word.strip()]
    return given


def _parameter_option(name: str, text: str, **attributes: Any) -> Callable[..., Any]:
    return click.option(_flag(name), name, default=None, help=text, **attributes)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@click.group("index", cls=CommandGroup, short_help="Create, list, drop and wait for indexes.")
def index() -> None:
    """Create, list and drop the indexes of a table, and wait until they are built.

    \b
    Example:
      tiltyard index create library.books title FTS --wait
    """


@index.command("create", short_help="Build an index of a column.")
@click.argument("table", type=TABLE)
@click.argument("column", type=COLUMN)
@click.argument("kind", metavar="[TYPE]", type=INDEX_TYPE, required=False)
@click.option("--name", help="Its name [default: the column's name with _idx].")
@click.option("--replace", is_flag=True, help="Build the index of this name anew, if there is one.")
@click.option("--metric", help="IVF: the distance, l2, cosine, dot or hamming.")
@parameter_options
@click.option("--wait", is_flag=True, help="Wait until it is built.")
@timeout_option
@branch_option
@outcome_option
@catalog_command
def create(
    catalog: Caller,
    table: TypedId,
    column: str,
    kind: str | None,
    name: str | None,
    replace: bool,
    metric: str | None,
    wait: bool,
    timeout: float | None,
    branch: str | None,
    form: OutputFormat,
    **parameters: Any,
) -> None:
    """Build an index of COLUMN, or of a field in it (author.name): what searches and filters of it are answered by.

    TYPE is BTREE, BITMAP, ZONEMAP, BLOOMFILTER (values), LABEL_LIST (lists), FTS, NGRAM, FM, MINHASHLSH (texts), RTREE
    (geometries), IVF_FLAT, IVF_SQ, IVF_PQ, IVF_RQ, IVF_HNSW_FLAT, IVF_HNSW_SQ or IVF_HNSW_PQ (vectors). Without it, it
    is BTREE, or what fits the column: IVF_PQ for vectors, LABEL_LIST for lists. The server builds it in the background;
    with --root this command does. A type that does not fit, or has no such option, is refused with those that do.

    \b
    Examples:
      tiltyard index create library.books title FTS --stem --language English
      tiltyard index create library.books vector IVF_PQ --metric cosine --num-partitions 256 --wait
      tiltyard index create library.books isbn --name by_isbn
    """
    from tiltyard.model.columns.index_types import check_parameter_names

    if timeout is not None and not wait:
        raise CommandError("--timeout is of --wait: give both, or leave it out.", ExitStatus.USAGE)
    given = given_parameters(parameters)
    kind = kind or _choose_type(catalog, table, column, branch)
    check_parameter_names(kind, [*given, *(["metric"] if metric is not None else [])])
    queued = catalog.call(
        "CreateTableIndex",
        id=list(table), column=column, index_type=kind, name=name, replace=replace, distance_type=metric,
        branch=branch, **given,
    )["transaction_id"]  # fmt: skip
    about = catalog.call("DescribeTransaction", id=[queued])["properties"]
    name, kind = about["index_name"], about["index_type"]
    record = {"table": str(table), "index": name, "type": kind, "column": column, "transaction": queued}
    if not wait and is_server(catalog):
        advice = f"tiltyard index wait {shlex.quote(str(table))} {shlex.quote(name)}"
        print_outcome(f"{name} is being built: {kind} on {column}. {advice}", {**record, "status": BUILDING}, form)
        return
    built = wait_for_indexes(catalog, table, [name], branch, timeout)[name]
    rows = built.get("num_indexed_rows")
    print_outcome(f"{name} is built: {kind} on {column}, {rows} rows", {**record, "status": DONE, "rows": rows}, form)


def _choose_type(catalog: Caller, table: TypedId, column: str, branch: str | None) -> str:
    """Return the type of index to begin with for a column; BTREE where none fits, and the server says why."""
    found = find_types(catalog, table, column, branch)
    return found[0] if found else "BTREE"


def find_types(catalog: Caller, table: TypedId, column: str, branch: str | None) -> list[IndexType]:
    """Return the types of index that a column can have, the one to begin with first; none without such a column."""
    from tiltyard.cli.browsing.description import read_schema
    from tiltyard.model.columns.index_types import fitting_types

    field = _find_field(read_schema(catalog, table, branch=branch), column)
    return [] if field is None else fitting_types(field)


def _find_field(schema: pa.Schema, path: str) -> pa.Field | None:
    """Return the field of a path, such as author.name; None where there is none."""
    import pyarrow as pa

    fields: Any = schema
    field = None
    for name in [path] if path in schema.names else path.split("."):
        field = next((each for each in fields if each.name == name), None)
        if field is None:
            return None
        fields = field.type if pa.types.is_struct(field.type) else ()
    return field


@index.command("list", short_help="List the indexes of a table.")
@click.argument("table", type=TABLE)
@branch_option
@format_option
@catalog_command
def list_indices(catalog: Caller, table: TypedId, branch: str | None, form: OutputFormat) -> None:
    """List the indexes of a table: what they are on, how many rows they have and lack, and why a build has failed.

    \b
    Example:
      tiltyard index list library.books
    """

    def describe(entry: dict[str, Any]) -> dict[str, Any]:
        size = entry.get("size_bytes")
        return {
            "index": entry["index_name"],
            "type": entry.get("index_type"),
            "column": ", ".join(entry["columns"]),
            "status": entry["status"],
            "rows": entry.get("num_indexed_rows"),
            "unindexed": entry.get("num_unindexed_rows"),
            "bytes": format_size(size) if form is OutputFormat.TABLE and size is not None else size,
            "failure": entry.get("failure"),
        }

    records = [describe(each) for each in list_indexes(catalog, table, branch).values()]
    columns = ["index", "type", "column", "status", "rows", "unindexed", "bytes"]
    columns += ["failure"] if form is not OutputFormat.TABLE or any(each["failure"] for each in records) else []
    print_records(records, columns, form, numbers=("rows", "unindexed", "bytes"))


@index.command("drop", short_help="Drop an index.")
@click.argument("table", type=TABLE)
@click.argument("name", type=INDEX)
@branch_option
@catalog_command
def drop(catalog: Caller, table: TypedId, name: str, branch: str | None) -> None:
    """Drop an index, or cancel its build; the rows stay.

    \b
    Example:
      tiltyard index drop library.books title_idx
    """
    catalog.call("DropTableIndex", id=list(table), index_name=name, branch=branch)
    click.echo(f"The index {name} of {table} is dropped")


@index.command("wait", short_help="Wait until indexes are built.")
@click.argument("table", type=TABLE)
@click.argument("names", metavar="[NAME]…", nargs=-1, type=INDEX)
@timeout_option
@branch_option
@format_option
@catalog_command
def wait(
    catalog: Caller,
    table: TypedId,
    names: tuple[str, ...],
    timeout: float | None,
    branch: str | None,
    form: OutputFormat,
) -> None:
    """Wait until indexes of a table are built: those named, or all; with status 0 once they are.

    A build that failed ends it with status 1 and the reason, --timeout with 124. With --root this command builds what
    waits and no server has begun.

    \b
    Examples:
      tiltyard index wait library.books
      tiltyard index wait library.books title_idx --timeout 60
    """
    there = list_indexes(catalog, table, branch)
    missing = [name for name in names if name not in there]
    if missing:
        near = suggest(missing[0], there)
        hint = f" Did you mean {' or '.join(near)}?" if near else f" tiltyard index list {shlex.quote(str(table))}"
        raise CommandError(f"{table} has no index {missing[0]}.{hint}", ExitStatus.NOT_FOUND)
    built = wait_for_indexes(catalog, table, names or there, branch, timeout)
    if form is OutputFormat.TABLE:
        click.echo(f"{', '.join(built)} of {table}: built" if built else f"{table} has no index")
        return
    records = [
        {"index": name, "status": each["status"], "rows": each.get("num_indexed_rows")} for name, each in built.items()
    ]
    print_records(records, ("index", "status", "rows"), form)


BUILDING, FAILED, DONE = "building", "failed", "done"
"""The states of an index."""


def list_indexes(catalog: Caller, table: TypedId, branch: str | None) -> dict[str, dict[str, Any]]:
    """Return the indexes of a table by name. Raises lance_namespace.errors."""
    entries = catalog.entries("ListTableIndices", "indexes", id=list(table), branch=branch)
    return {each["index_name"]: each for each in entries}


def wait_for_indexes(
    catalog: Caller, table: TypedId, names: Iterable[str], branch: str | None, seconds: float | None
) -> dict[str, dict[str, Any]]:
    """Wait until indexes are built, those that `names` has; return them.

    Raises CommandError where one has failed or was dropped, or the time is over, and lance_namespace.errors.
    """
    wanted = list(names)
    found = list_indexes(catalog, table, branch)

    def is_done() -> bool:
        nonlocal found
        found = list_indexes(catalog, table, branch)
        return not _unfinished(found, wanted)

    def figures() -> Mapping[str, str]:
        waiting = _unfinished(found, wanted)
        share = 1 - len(waiting) / len(wanted) if wanted else 1
        return {"progress": f"{share}", **({"stage": f"build {', '.join(waiting)}"} if waiting else {})}

    with running_here(catalog, _queued_here(catalog, table, wanted, branch)):
        if not wait_until(is_done, f"indexes of {table}", figures, seconds):
            waiting = ", ".join(_unfinished(found, wanted))
            raise CommandError(
                f"{waiting} of {table} is not built after {seconds:g} s; it goes on, where a server or a worker runs: "
                f"tiltyard index wait {table}",
                ExitStatus.TIMED_OUT,
            )
    for name in wanted:
        if name not in found:
            raise CommandError(f"The index {name} of {table} was dropped while it was built.", ExitStatus.NOT_FOUND)
        if found[name]["status"] == FAILED:
            raise CommandError(f"The index {name} of {table} could not be built: {found[name]['failure']}")
    return {name: found[name] for name in wanted}


def _unfinished(found: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    return [name for name in names if name in found and found[name]["status"] == BUILDING]


def _queued_here(catalog: Caller, table: TypedId, names: Iterable[str], branch: str | None) -> list[str]:
    """Return the transactions of builds that wait, of a catalog that this process has opened; none of a server's.

    Raises CommandError for one that takes Spark.
    """
    if is_server(catalog):
        return []
    from tiltyard.model.branches import Branch
    from tiltyard.tables.indexes.build_job import INDEX_JOB
    from tiltyard.tables.indexes.build_queue import queued_builds
    from tiltyard.tables.opening import open_for_reading

    ctx, of = context_of(catalog), Branch.parse(branch)
    queued = queued_builds(ctx, open_for_reading(ctx, list(table), branch=of), of)
    chosen = [each for each in queued if each.payload["name"] in names]
    for each in chosen:
        if each.kind == INDEX_JOB:
            raise CommandError(
                f"{each.payload['name']} of {table} takes Spark, as spark_index_rows says: tiltyard job resume "
                f"{each.id} --uri {shlex.quote(catalog.address)}"
            )
    return [each.id for each in chosen]
