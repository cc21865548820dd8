"""Columns that are computed: declared here, in the metadata of their fields, and filled by a job of the pipeline.

Clients' code is looked at here as bytes only. It is unpickled in Spark's Python workers, and nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.access.visibility import seen_table
from tiltyard.catalog.jobs import queue_job
from tiltyard.model.computed_columns import Computed, Declaration, declared
from tiltyard.model.ids import MAIN_BRANCH, display, table_id
from tiltyard.model.jobs import pipeline_jobs
from tiltyard.model.operations import operation
from tiltyard.model.schemas.from_json import parse_type
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.schema.field_paths import arrow_field
from tiltyard.tables.sql.expressions import check_expression

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance

    from tiltyard.context import Context

BACKFILL = "backfill"
MOST_CODE = 256 << 10
"""How long code may be, in base64: every version's manifest repeats it."""
_OWN = "tiltyard."


def virtual_fields(ctx: Context, names: Sequence[str] | None, entry: models.AddColumnsEntry) -> list[pa.Field]:
    """The columns that a virtual column declares, empty until they are filled.

    Raises UnsupportedOperationError (code of clients is switched off), PermissionDeniedError, InvalidInputError.
    """
    wanted = entry.virtual_column
    assert wanted is not None
    check_udfs(ctx, names)
    declaration = Declaration(
        name=_said("udf_name", wanted.udf_name),
        version=_said("udf_version", wanted.udf_version),
        code=_code(wanted.udf),
        inputs=tuple(wanted.input_columns),
        image=check_image(ctx, wanted.image),
        backend=wanted.udf_backend or "",
        manifest=_manifest(wanted.manifest, wanted.manifest_checksum),
        manifest_checksum=wanted.manifest_checksum or "",
    )
    common = own_metadata(wanted.field_metadata)
    if not wanted.outputs:
        if wanted.data_type is None:
            raise InvalidInputError(f"Say what the virtual column '{entry.name}' gives: 'outputs' or 'data_type'.")
        metadata = {**common, **declaration.metadata()}
        return [pa.field(entry.name, parse_type(wanted.data_type), metadata=metadata)]
    return [_output(declaration, output, common) for output in wanted.outputs]


def _output(
    declaration: Declaration, output: models.AddVirtualColumnOutputEntry, common: Mapping[str, str]
) -> pa.Field:
    if not output.nullable:
        raise InvalidInputError(f"The column '{output.column}' is null until it is filled: let it be nullable.")
    own = {**common, **own_metadata(output.metadata)}
    metadata = {**own, **declaration.altered(struct_field=output.struct_field).metadata()}
    return pa.field(output.column, parse_type(output.data_type), metadata=metadata)


def check_udfs(ctx: Context, names: Sequence[str] | None) -> None:
    """Whether clients' code may run, for whoever asks. Raises UnsupportedOperationError, PermissionDeniedError."""
    if not ctx.settings.udfs:
        raise UnsupportedOperationError(
            "Columns that code of clients computes are switched off: the server's setting 'udfs' allows them."
        )
    if not ctx.principal.administrator:
        seen_table(ctx, table_id(names), Privilege.RUN_UDFS.value)


def check_inputs(dataset: lance.LanceDataset, fields: Sequence[pa.Field]) -> None:
    """The columns that code reads are there. Raises TableColumnNotFoundError, InvalidInputError (none)."""
    for field in fields:
        found = declared(field.metadata)
        if isinstance(found, Declaration):
            if not found.inputs:
                raise InvalidInputError(f"The code of '{field.name}' reads no column: name its input_columns.")
            for path in found.inputs:
                arrow_field(dataset, path)


def computed_field(dataset: lance.LanceDataset, name: str, expression: str) -> pa.Field:
    """The column that an SQL expression computes: of the type of its values, null until it is filled.

    Raises InvalidInputError for what is not SQL, TableColumnNotFoundError.
    """
    with lance_errors(dataset):
        kind = dataset.scanner(columns={name: expression}, limit=1).projected_schema.field(name).type
    return pa.field(name, kind, metadata=Computed(expression).metadata())


def altered_metadata(
    ctx: Context, dataset: lance.LanceDataset, names: Sequence[str] | None, entry: models.AlterColumnsEntry
) -> dict[str, str | None]:
    """A virtual column's field metadata with what is altered: its values are stale then, if its code is another.

    Raises as `virtual_fields` does, InvalidInputError for an ordinary column, TableColumnNotFoundError.
    """
    wanted = entry.virtual_column
    assert wanted is not None
    check_udfs(ctx, names)
    field = arrow_field(dataset, entry.path)
    found = declared(field.metadata)
    if not isinstance(found, Declaration):
        raise InvalidInputError(f"The column '{entry.path}' is not virtual: add one that is.")
    changed = found.altered(
        name=wanted.udf_name,
        version=wanted.udf_version,
        code=None if wanted.udf is None else _code(wanted.udf),
        inputs=None if wanted.input_columns is None else tuple(wanted.input_columns),
        image=None if wanted.image is None else check_image(ctx, wanted.image),
        backend=wanted.udf_backend,
        manifest=None if wanted.manifest is None else _manifest(wanted.manifest, wanted.manifest_checksum),
        manifest_checksum=wanted.manifest_checksum,
    )
    metadata: dict[str, str | None] = {**own_metadata(wanted.field_metadata), **changed.metadata()}
    check_inputs(dataset, [pa.field(entry.path, field.type, metadata=changed.metadata())])
    return metadata


@operation(needs=on_table(Privilege.WRITE))
def alter_table_backfill_columns(
    ctx: Context, request: models.AlterTableBackfillColumnsRequest
) -> models.AlterTableBackfillColumnsResponse:
    """Queue the job that fills a computed column: rows that are missing or stale, or those among them of `where`.

    The sizes and concurrencies of the request are hints for another engine: the job plans by the table's fragments.
    Raises TableColumnNotFoundError, InvalidInputError (an ordinary column, a filter that is no SQL, a version to read
    from), UnsupportedOperationError (code of clients is switched off, a branch).
    """
    table = open_for_reading(ctx, request.id, branch=request.branch)
    found = declared(arrow_field(table.dataset, request.column).metadata)
    if found is None:
        raise InvalidInputError(f"The column '{request.column}' is not computed: there is nothing to fill it with.")
    wanted = Privilege.WRITE
    if isinstance(found, Declaration):
        check_udfs(ctx, request.id)
        wanted |= Privilege.RUN_UDFS
    if request.read_version not in (None, table.dataset.version):
        raise InvalidInputError("A backfill reads the latest version, and follows it: leave 'read_version' out.")
    if request.where is not None:
        check_expression(request.where, "filter 'where'")
        with lance_errors(table.dataset):
            table.dataset.scanner(columns=[], with_row_id=True, filter=request.where).explain_plan()
    check_backfill(request.branch)
    path = table_id(request.id)
    job_id = queue_backfill(ctx, table.record.id, path, request.column, found, request.where, wanted=wanted)
    return models.AlterTableBackfillColumnsResponse(job_id=job_id)


def check_backfill(branch: str | None) -> None:
    """Whether columns of a branch can be filled. Raises UnsupportedOperationError if not."""
    if BACKFILL not in pipeline_jobs():
        raise UnsupportedOperationError("This server has no job that fills columns.")
    if branch not in (None, "", MAIN_BRANCH):
        raise UnsupportedOperationError("Columns of a branch are not filled: fill them on main, and branch then.")


def queue_backfill(
    ctx: Context,
    record_id: int,
    path: Sequence[str],
    column: str,
    declaration: Declaration | Computed | None,
    where: str | None = None,
    *,
    wanted: Privilege,
) -> str:
    """Queue the job that fills a column of main, which `check_backfill` has let pass; its id.

    `wanted` are the privileges that whoever asks needs when it is begun.
    """
    image = declaration.image if isinstance(declaration, Declaration) else ""
    given = {"table": display(tuple(path)), "column": column, "where": where}
    arguments = {name: value for name, value in given.items() if value is not None}
    told = {"column": column}
    queued = queue_job(
        ctx, BACKFILL, arguments, wanted=wanted, record_id=record_id, table=path, properties=told, image=image
    )
    return queued.id


def _said(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidInputError(f"A virtual column needs '{name}'.")
    return text


def _code(text: str) -> str:
    """Code in base64, as it is. Raises InvalidInputError."""
    if len(text) > MOST_CODE:
        raise InvalidInputError(f"The code is {len(text)} characters long: let it import what is above {MOST_CODE}.")
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii's is one, and so is that for what is not ASCII
        raise InvalidInputError(f"'udf' is not base64: {error}.") from error
    if not raw:
        raise InvalidInputError("'udf' is empty: it is the pickled function, in base64.")
    return text


def check_image(ctx: Context, image: str) -> str:
    """The image, if the server's setting has it. Raises InvalidInputError."""
    allowed = ctx.settings.udf_images
    if image not in allowed:
        known = ", ".join(allowed) or "none"
        raise InvalidInputError(
            f"The image '{image}' is not among those of the server's setting 'udf_images': {known}."
        )
    return image


def _manifest(manifest: str | None, checksum: str | None) -> str:
    if manifest and checksum and hashlib.sha256(manifest.encode()).hexdigest() != checksum.lower():
        raise InvalidInputError("The manifest is not what its manifest_checksum says.")
    return manifest or ""


def own_metadata(given: Mapping[str, str] | None) -> dict[str, str]:
    """Metadata that a client adds. Raises InvalidInputError for keys that are the server's."""
    if bad := next((key for key in given or {} if key.startswith(_OWN)), None):
        raise InvalidInputError(f"The metadata '{bad}' is the server's to set: leave it out.")
    return dict(given or {})


def own_properties(given: Mapping[str, str] | None, before: Mapping[str, str]) -> dict[str, str]:
    """A table's properties where a client gives new ones: those of the server stay. Raises InvalidInputError."""
    own_metadata({key: value for key, value in (given or {}).items() if before.get(key) != value})
    return {key: value for key, value in before.items() if key.startswith(_OWN)} | dict(given or {})
