"""`tiltyard import`: a file or a folder of images into a table, without Spark.

The rows go to the server in parts, which become visible together as one version once all have arrived (a multipart
write). A part has a key, so that one that is sent twice counts once; the same command goes on after a cut.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tiltyard.cli.options import parse_pairs, typed_options
from tiltyard.cli.output.cells import format_size
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import CatalogTarget, defer_imports, opened_catalog, target_options
from tiltyard.pipeline.sources.file_options import CsvOptions, FileOptions, pick_options
from tiltyard.runtime.durability import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from tiltyard.calls.caller import Caller
    from tiltyard.cli.transfer.import_source import ImportSource
    from tiltyard.pipeline.sources.readers import Piece


SPARK_BYTES = 16 << 30
"""From this size on, Spark with several processors reads files sooner than one process does."""
RETRY_SECONDS = 60.0
"""How long a part is sent again that gets no answer."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 5.0
CREATE, APPEND, OVERWRITE = "create", "append", "overwrite"


@click.command("import", short_help="Bring a file into a table.")
@click.argument("file")
@click.argument("table", type=TABLE)
@click.option("--append", "mode", flag_value=APPEND, help="Add the rows to a table that exists.")
@click.option(
    "--overwrite", "mode", flag_value=OVERWRITE, help="Replace the rows and columns of the table, if it exists."
)
@click.option(
    "--file-format",
    type=click.Choice(["parquet", "arrow", "csv", "json", "images"]),
    help="The file's format, if its name does not tell it.",
)
@typed_options(CsvOptions)
@click.option("--cast", "casts", multiple=True, metavar="COLUMN=TYPE", help="The type of a column: float32[128], …")
@click.option("--null", "nulls", multiple=True, metavar="COLUMN", help="A column of the table that the file lacks.")
@click.option("--dry-run", is_flag=True, help="Only show the columns and the size.")
@format_option
@target_options
def import_file(
    target: CatalogTarget,
    file: str,
    table: TypedId,
    mode: str | None,
    file_format: str | None,
    casts: tuple[str, ...],
    nulls: tuple[str, ...],
    dry_run: bool,
    form: OutputFormat,
    **csv: Any,
) -> None:
    """Bring FILE into TABLE: CSV, JSON lines, Parquet or Arrow, a folder or pattern of such files, a folder of images.

    The rows are visible together, once all have arrived, or not at all. If it is cut, the same command goes on. Types
    of CSV and JSON are the narrowest that give every value back as it is written. Many gigabytes are read sooner on
    Spark: tiltyard job ingest.

    \b
    Examples:
      tiltyard import films.csv films
      tiltyard import 'new/*.parquet' films --append
      tiltyard import photos/ images --root ./data
      tiltyard import vectors.jsonl items --cast 'vector=float32[128]' --dry-run
    """
    from tiltyard.runtime.lazy_imports import import_lazily

    defer_imports()
    import_lazily()
    with opened_catalog(target, new_ids=(table,), creates=True) as catalog:
        from tiltyard.cli.transfer.import_source import open_source

        schema = _table_schema(catalog, table)
        if mode == APPEND and schema is None:
            _check_exists(catalog, table)
        source = open_source(
            file,
            schema if mode == APPEND else None,
            files=pick_options(FileOptions, {**csv, "format": file_format}),
            casts=parse_pairs(casts),
            nulls=nulls,
        )
        if dry_run:
            _show(source, form)
            return
        if mode is None and schema is not None and _state_file(catalog, table, CREATE, source).read() is None:
            raise CommandError(f"{table} exists: --append adds the rows, --overwrite replaces all.")
        _advise(source.size)
        state, version = _import(target, catalog, table, mode or CREATE, source)
        _index_lineage(catalog, table, version)
        parked = f"; its contract has parked {state.rejected} others" if state.rejected else ""
        click.echo(f"{state.rows} rows are in {table}, as version {version}{parked}")


def _table_schema(catalog: Caller, table: TypedId) -> pa.Schema | None:
    """Return the columns of a table that has a version; None for one that does not exist, or is only declared."""
    from lance_namespace.errors import TableNotFoundError

    from tiltyard.cli.browsing.description import read_schema

    try:
        versions = catalog.call("ListTableVersions", id=list(table), descending=True, limit=1)["versions"]
    except TableNotFoundError:
        return None
    return read_schema(catalog, table) if versions else None


def _check_exists(catalog: Caller, table: TypedId) -> None:
    """Raise CommandError for a table that does not exist: to append to a mistyped one creates none."""
    from lance_namespace.errors import TableNotFoundError

    from tiltyard.cli.session.catalog import describe_missing

    try:
        catalog.call("TableExists", id=list(table))
    except TableNotFoundError as error:
        message = describe_missing(catalog, table) or f"There is no {table}: without --append it is created."
        raise CommandError(message, ExitStatus.NOT_FOUND) from error


def _show(source: ImportSource, form: OutputFormat) -> None:
    from tiltyard.cli.browsing.description import schema_records

    print_records(schema_records(source.schema), ("column", "type", "nullable"), form)
    click.echo(f"{format_size(source.size)} in {len(source.parts())} parts; nothing was imported.", err=True)


def _advise(size: int) -> None:
    """Say where Spark serves better."""
    if size >= SPARK_BYTES:
        click.echo(
            f"tiltyard: this is {format_size(size)}: `tiltyard job ingest` reads it in parallel, on Spark.", err=True
        )


def _import(
    target: CatalogTarget, catalog: Caller, table: TypedId, mode: str, source: ImportSource
) -> tuple[ImportState, int]:
    """Send all parts that have not arrived, and publish them; return the state and the version.

    Raises CommandError, lance_namespace.errors.
    """
    from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

    parts = _keyed_parts(source)
    file = _state_file(catalog, table, mode, source)
    state = file.read()
    if state is None:
        state = _begin(catalog, table)
        file.write(state)
    elif state.done:
        click.echo(
            f"tiltyard: going on with an import that was cut: {len(state.done)} of {len(parts)} parts are there.",
            err=True,
        )

    def publish() -> int:
        _send_parts(catalog, table, mode, source, parts, state, file)
        request: dict[str, Any] = {"id": list(table), "upload_id": state.upload_id}
        request |= {"source": source.path, "source_columns": source.origins()}
        return int(catalog.call("CompleteMultipartWrite", **request)["version"])

    try:
        version = _observed(target, table, source, state, publish)
    except ServiceUnavailableError as error:
        raise CommandError(f"{error} The same command goes on where it was cut.", ExitStatus.UNAVAILABLE) from error
    except KeyboardInterrupt:
        click.echo("tiltyard: interrupted; nothing is visible yet, and the same command goes on.", err=True)
        raise SystemExit(ExitStatus.INTERRUPTED) from None
    except (CommandError, LanceNamespaceError) as error:
        _give_up(catalog, table, state, file, error)
    file.remove()
    return state, version


def _observed(
    target: CatalogTarget, table: TypedId, source: ImportSource, state: ImportState, publish: Callable[[], int]
) -> int:
    """Return the version that `publish` makes, with the events of OpenLineage that a job's run has, if they are on."""
    from tiltyard.model.ids import DEFAULT_DELIMITER
    from tiltyard.pipeline.openlineage.emitter import current_emitter, observe
    from tiltyard.pipeline.runs import LocalRun

    if current_emitter() is None:
        return publish()

    def work(run: LocalRun) -> dict[str, object]:
        version = publish()
        return {"rows": state.rows, "version": version}

    arguments = {
        "source": source.path,
        "table": DEFAULT_DELIMITER.join(table),
        "cast": source.casts,
        "null": source.nulls,
    }
    figures = observe("import", LocalRun(state.upload_id), target.connection(), arguments, work)
    return int(str(figures["version"]))


def _index_lineage(catalog: Caller, table: TypedId, version: int) -> None:
    """Have the catalog index what the version was made from, which its commit says: a failure is a warning."""
    from lance_namespace.errors import LanceNamespaceError

    try:
        catalog.call("RecordTableLineage", id=list(table), version=version)
    except LanceNamespaceError as error:
        click.echo(f"tiltyard: the lineage of version {version} is in its commit, and not indexed: {error}", err=True)


def _keyed_parts(source: ImportSource) -> list[tuple[str, tuple[Piece, ...]]]:
    """Return the parts of a source with their keys."""
    return [(part_key(piece.key for piece in part), part) for part in source.parts()]


def _state_file(catalog: Caller, table: TypedId, mode: str, source: ImportSource) -> ImportFile:
    """Return the file that holds the state of this import."""
    keys = (key for key, _ in _keyed_parts(source))
    return ImportFile(catalog.address, *table, mode, source.key, *keys)


def _begin(catalog: Caller, table: TypedId) -> ImportState:
    """Declare the table if there is none, and start a multipart write. Raises lance_namespace.errors."""
    from lance_namespace.errors import TableNotFoundError

    names, is_declared = list(table), False
    try:
        catalog.call("TableExists", id=names)
    except TableNotFoundError:
        catalog.call("DeclareTable", id=names)
        is_declared = True
    return ImportState(catalog.call("CreateMultipartWrite", id=names)["upload_id"], is_declared)


def _send_parts(
    catalog: Caller,
    table: TypedId,
    mode: str,
    source: ImportSource,
    parts: Sequence[tuple[str, Sequence[Piece]]],
    state: ImportState,
    file: ImportFile,
) -> None:
    """Send the parts that have not arrived, one after the other."""
    from tiltyard.cli.output.progress import byte_progress

    with byte_progress(f"import {table}", source.size) as advance:
        for key, part in parts:
            if key in state.done:
                advance(sum(piece.size for piece in part), f"{state.rows} rows")
                continue

            def read(part: Sequence[Piece] = part) -> pa.RecordBatchReader:
                return source.read(part, lambda size: advance(size, f"{state.rows} rows"))

            response = _send_part(catalog, table, mode, read, state.upload_id, key)
            state.rows += response.get("num_inserted_rows") or 0
            state.rejected += response.get("num_rejected_rows") or 0
            state.done.append(key)
            file.write(state)


def _send_part(
    catalog: Caller,
    table: TypedId,
    mode: str,
    read: Callable[[], pa.RecordBatchReader],
    upload_id: str,
    key: str,
) -> Any:
    """Send one part; again where the connection is cut. Raises lance_namespace.errors, CommandError."""
    from lance_namespace.errors import ServiceUnavailableError, ThrottlingError

    deadline, pause = time.monotonic() + RETRY_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return catalog.write(
                "InsertIntoTable",
                read(),
                f"{upload_id} {key}",
                id=list(table),
                mode=OVERWRITE if mode == OVERWRITE else APPEND,
                upload_id=upload_id,
                upload_part_id=key,
            )
        except (ServiceUnavailableError, ThrottlingError):
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, _MAX_PAUSE_SECONDS)


def _give_up(catalog: Caller, table: TypedId, state: ImportState, file: ImportFile, error: Exception) -> NoReturn:
    """Remove what an import has left that cannot succeed, and raise what has stopped it."""
    from contextlib import suppress

    from lance_namespace.errors import LanceNamespaceError, TransactionNotFoundError

    file.remove()
    with suppress(LanceNamespaceError):
        catalog.call("AbortMultipartWrite", id=list(table), upload_id=state.upload_id)
    if state.is_declared:
        with suppress(LanceNamespaceError):
            if not catalog.call("ListTableVersions", id=list(table), descending=True, limit=1)["versions"]:
                catalog.call("DropTable", id=list(table))
    if isinstance(error, TransactionNotFoundError):
        raise CommandError(
            f"The import that was cut is no longer there ({error}): look at {table}, then give the command again."
        ) from error
    raise error


@dataclass(slots=True)
class ImportState:
    """An import: the server's id of its upload, the parts that have arrived, whether its table was declared for it."""

    upload_id: str
    is_declared: bool
    done: list[str] = field(default_factory=list)
    rows: int = 0
    rejected: int = 0


class ImportFile:
    """The file of one import, named by what it reads and writes: another source, or another table, has another file."""

    def __init__(self, *identity: str) -> None:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self._path = Path(base) / "tiltyard" / "imports" / f"{digest[:32]}.json"

    def read(self) -> ImportState | None:
        """Return the state; None where there is none that can be read: then the import begins anew."""
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
            return ImportState(**content)
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write(self, state: ImportState) -> None:
        """Replace the file atomically and durably. Raises OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(str(self._path), json.dumps(asdict(state)).encode())

    def remove(self) -> None:
        """Remove the file. Idempotent."""
        self._path.unlink(missing_ok=True)


def part_key(pieces: Iterable[str]) -> str:
    """Return the key of a part of an import, from those of its pieces: sent twice, the part counts once."""
    return hashlib.sha256(json.dumps(list(pieces)).encode()).hexdigest()[:32]
