"""Computed columns: declare them in the metadata of their fields, and queue the Spark jobs that fill them (backfills).

A virtual column is computed by code of clients (a UDF), a computed column by SQL. The server handles code as bytes
only; it is unpickled in Spark's Python workers, and nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.access.authorization import authorize_table
from tiltyard.access.needs import on_table
from tiltyard.catalog.jobs.submission import queue_job
from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import (
    MAX_CODE_LENGTH,
    ExpressionDeclaration,
    FunctionDeclaration,
    UdfDeclaration,
    read_declaration,
)
from tiltyard.model.ids import Id, table_id
from tiltyard.model.jobs import job_result, pipeline_jobs
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import FILES
from tiltyard.model.schemas.arrow_json import parse_type
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.schema.expression_refresh import REFRESH_COLUMN, is_refreshed_here
from tiltyard.tables.schema.field_paths import arrow_field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance

    from tiltyard.context import Context, OpenTable

BACKFILL = "backfill"
MAX_CONCURRENCY = 100_000
"""Tasks of one refresh at once, at most."""
_SERVER_PREFIX = "tiltyard."
"""Prefix of the properties and metadata that the server alone sets."""


def virtual_fields(ctx: Context, names: Sequence[str] | None, entry: models.AddColumnsEntry) -> list[pa.Field]:
    """Return the fields of the columns that a virtual column's entry declares; their values are null until a backfill.

    Raises UnsupportedOperationError (code of clients is switched off), PermissionDeniedError, InvalidInputError.
    """
    virtual = entry.virtual_column
    assert virtual is not None
    check_udfs(ctx, names)
    declaration = replace(_udf_declaration(ctx, virtual), image=check_image(ctx, virtual.image))
    common = check_client_metadata(virtual.field_metadata)
    if not virtual.outputs:
        if virtual.data_type is None:
            raise InvalidInputError(f"Declare what the virtual column '{entry.name}' gives: 'outputs' or 'data_type'.")
        metadata = {**common, **declaration.metadata()}
        return [pa.field(entry.name, parse_type(virtual.data_type), metadata=metadata)]
    return [_output_field(declaration, output, common) for output in virtual.outputs]


def _output_field(
    declaration: UdfDeclaration, output: models.AddVirtualColumnOutputEntry, common: Mapping[str, str]
) -> pa.Field:
    if not output.nullable:
        raise InvalidInputError(f"The column '{output.column}' is null until it is filled: let it be nullable.")
    metadata = {**common, **check_client_metadata(output.metadata)}
    metadata |= declaration.with_changes(struct_field=output.struct_field).metadata()
    return pa.field(output.column, parse_type(output.data_type), metadata=metadata)


def udf_field(ctx: Context, entry: models.AddColumnsEntry) -> pa.Field:
    """Return the field of a view's column that code computes, of one value. Raises InvalidInputError."""
    virtual = entry.virtual_column
    assert virtual is not None
    if virtual.outputs or virtual.data_type is None:
        raise InvalidInputError(f"Declare what the column '{entry.name}' of the view has by 'data_type' alone.")
    if virtual.auto_backfill:
        raise InvalidInputError(f"Refreshes of the view compute '{entry.name}': leave 'auto_backfill' out.")
    metadata = {**check_client_metadata(virtual.field_metadata), **_udf_declaration(ctx, virtual).metadata()}
    return pa.field(entry.name, parse_type(virtual.data_type), metadata=metadata)


def _udf_declaration(ctx: Context, virtual: models.AddVirtualColumnEntry) -> UdfDeclaration:
    return UdfDeclaration(
        name=_require_text("udf_name", virtual.udf_name),
        version=_require_text("udf_version", virtual.udf_version),
        code=_check_code(virtual.udf),
        inputs=tuple(virtual.input_columns),
        image=check_image(ctx, virtual.image) if virtual.image else "",
        backend=virtual.udf_backend or "",
        manifest=_check_manifest(virtual.manifest, virtual.manifest_checksum),
        manifest_checksum=virtual.manifest_checksum or "",
    )


def check_udfs(ctx: Context, names: Sequence[str] | None) -> None:
    """Check that the caller may have code of clients run. Raises UnsupportedOperationError, PermissionDeniedError."""
    if not ctx.settings.udfs:
        raise UnsupportedOperationError(
            "Columns that code of clients computes are switched off: the server's setting 'udfs' allows them."
        )
    if not ctx.is_unchecked:
        authorize_table(ctx, table_id(names), Privilege.RUN_UDFS.value)


def check_inputs(dataset: lance.LanceDataset, fields: Sequence[pa.Field]) -> None:
    """Check that the columns that code reads exist. Raises TableColumnNotFoundError, InvalidInputError (none)."""
    for field in fields:
        declaration = read_declaration(field.metadata)
        if isinstance(declaration, UdfDeclaration):
            if not declaration.inputs:
                raise InvalidInputError(f"The code of '{field.name}' reads no column: name its input_columns.")
            for path in declaration.inputs:
                arrow_field(dataset, path)


def computed_field(dataset: lance.LanceDataset, name: str, expression: str) -> pa.Field:
    """Return the field of a column that an SQL expression computes, of the expression's type; null until a backfill.

    Raises InvalidInputError for what is not SQL, TableColumnNotFoundError.
    """
    with lance_errors(dataset):
        kind = dataset.scanner(columns={name: expression}, limit=1).projected_schema.field(name).type
    return pa.field(name, kind, metadata=ExpressionDeclaration(expression).metadata())


def altered_metadata(
    ctx: Context, dataset: lance.LanceDataset, names: Sequence[str] | None, entry: models.AlterColumnsEntry
) -> dict[str, str | None]:
    """Return a virtual column's field metadata with the changes of a request; with other code its values are stale.

    Raises as `virtual_fields` does, InvalidInputError for an ordinary column, TableColumnNotFoundError.
    """
    virtual = entry.virtual_column
    assert virtual is not None
    check_udfs(ctx, names)
    field = arrow_field(dataset, entry.path)
    declaration = read_declaration(field.metadata)
    if not isinstance(declaration, UdfDeclaration):
        raise InvalidInputError(f"The column '{entry.path}' is not virtual: add one that is.")
    changed = declaration.with_changes(
        name=virtual.udf_name,
        version=virtual.udf_version,
        code=None if virtual.udf is None else _check_code(virtual.udf),
        inputs=None if virtual.input_columns is None else tuple(virtual.input_columns),
        image=None if virtual.image is None else check_image(ctx, virtual.image),
        backend=virtual.udf_backend,
        manifest=None if virtual.manifest is None else _check_manifest(virtual.manifest, virtual.manifest_checksum),
        manifest_checksum=virtual.manifest_checksum,
    )
    metadata: dict[str, str | None] = {**check_client_metadata(virtual.field_metadata), **changed.metadata()}
    check_inputs(dataset, [pa.field(entry.path, field.type, metadata=changed.metadata())])
    return metadata


@operation(needs=on_table(Privilege.WRITE), stores=FILES)
def alter_table_backfill_columns(
    ctx: Context, request: models.AlterTableBackfillColumnsRequest
) -> models.AlterTableBackfillColumnsResponse:
    """Queue the job that fills a computed column: its missing and stale values, or those of them that `where` selects.

    Spark runs it, with up to `concurrency` tasks at once; SQL over a small table is computed by a server's own worker.
    The request's other sizes are hints for another engine: the job plans by the table's fragments. Raises
    TableColumnNotFoundError, InvalidInputError (an ordinary column, a filter that is no SQL, a version to read from, a
    concurrency below 1), TableBranchNotFoundError, UnsupportedOperationError (code of clients is switched off).
    """
    branch = Branch.parse(request.branch)
    table = open_for_reading(ctx, request.id, branch=branch)
    declaration = read_declaration(arrow_field(table.dataset, request.column).metadata)
    if declaration is None:
        raise InvalidInputError(f"The column '{request.column}' is not computed: no backfill can fill it.")
    privileges = Privilege.WRITE
    if isinstance(declaration, UdfDeclaration | FunctionDeclaration):
        check_udfs(ctx, request.id)
        privileges |= Privilege.RUN_UDFS
    if request.read_version not in (None, table.dataset.version):
        raise InvalidInputError("A backfill reads the latest version, and follows it: leave 'read_version' out.")
    if request.concurrency is not None and not 1 <= request.concurrency <= MAX_CONCURRENCY:
        raise InvalidInputError(f"The concurrency is 1 to {MAX_CONCURRENCY} tasks, not {request.concurrency}.")
    if request.where is not None:
        check_expression(request.where, "filter 'where'")
        with lance_errors(table.dataset):
            table.dataset.scanner(columns=[], with_row_id=True, filter=request.where).explain_plan()
    options = {"where": request.where, "concurrency": request.concurrency}
    job_id = queue_backfill(ctx, table, table_id(request.id), branch, request.column, options, privileges=privileges)
    return models.AlterTableBackfillColumnsResponse(job_id=job_id)


@job_result(BACKFILL)
@job_result(REFRESH_COLUMN)
def refreshed_rows(properties: Mapping[str, str]) -> Mapping[str, Any]:
    """Return what a backfill has done, as the result of its job."""
    source, version = int(properties.get("source_version", "0")), int(properties.get("version", "0"))
    result = {
        "rows_assigned": int(properties.get("rows", "0")),
        "rows_failed": int(properties.get("rows_failed", "0")),
        "rows_remaining": int(properties.get("rows_remaining", "0")),
        "source_version": source or version,
    }
    return result | ({"published_version": version} if version > source else {})


def check_backfill() -> None:
    """Check that Spark's job that fills columns is installed. Raises UnsupportedOperationError."""
    if BACKFILL not in pipeline_jobs():
        raise UnsupportedOperationError("This server has no job that fills columns.")


def queue_backfill(
    ctx: Context,
    table: OpenTable,
    path: Sequence[str],
    branch: Branch,
    column: str,
    options: Mapping[str, Any] | None = None,
    *,
    privileges: Privilege,
) -> str:
    """Queue the job that fills a column, by Spark or by a server's worker; return the job's id.

    `privileges` are those that the caller still needs when the job begins. Raises TableColumnNotFoundError,
    UnsupportedOperationError (no such job is installed).
    """
    declaration = read_declaration(arrow_field(table.dataset, column).metadata)
    name = REFRESH_COLUMN if is_refreshed_here(ctx, table, column, declaration) else BACKFILL
    if name == BACKFILL:
        check_backfill()
    image = declaration.image if isinstance(declaration, UdfDeclaration) else ""
    arguments = {"table": str(Id(path)), "column": column, "branch": branch.lance_name, **(options or {})}
    queued = queue_job(
        ctx,
        name,
        {key: value for key, value in arguments.items() if value is not None},
        required=privileges,
        record_id=table.record.id,
        table=path,
        properties={"column": column, **({} if branch.is_main else {"branch": branch.name})},
        image=image,
    )
    return queued.id


def _require_text(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidInputError(f"A virtual column needs '{name}'.")
    return text


def _check_code(text: str) -> str:
    """Return code in base64 unchanged. Raises InvalidInputError for what is too long, empty or not base64."""
    if len(text) > MAX_CODE_LENGTH:
        raise InvalidInputError(
            f"The code is {len(text)} characters long: let it import what is above {MAX_CODE_LENGTH}."
        )
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one, and so is the error for text that is not ASCII
        raise InvalidInputError(f"'udf' is not base64: {error}.") from error
    if not raw:
        raise InvalidInputError("'udf' is empty: it is the pickled function, in base64.")
    return text


def check_image(ctx: Context, image: str) -> str:
    """Return an image that the settings allow. Raises InvalidInputError for any other."""
    allowed = ctx.settings.udf_images
    if image not in allowed:
        listed = ", ".join(allowed) or "none"
        raise InvalidInputError(
            f"The image '{image}' is not among those of the server's setting 'udf_images': {listed}."
        )
    return image


def _check_manifest(manifest: str | None, checksum: str | None) -> str:
    """Return a manifest that its checksum, if any, matches; "" for none. Raises InvalidInputError."""
    if manifest and checksum and hashlib.sha256(manifest.encode()).hexdigest() != checksum.lower():
        raise InvalidInputError("The manifest is not what its manifest_checksum says.")
    return manifest or ""


def check_client_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return metadata of a request. Raises InvalidInputError for keys that the server alone sets."""
    if reserved := next((key for key in metadata or {} if key.startswith(_SERVER_PREFIX)), None):
        raise InvalidInputError(f"The metadata '{reserved}' is the server's to set: leave it out.")
    return dict(metadata or {})


def replace_client_properties(new: Mapping[str, str] | None, before: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes that replace the properties of a table that clients may set; the server's stay.

    A value of None removes the property. Raises InvalidInputError.
    """
    check_client_metadata({key: value for key, value in (new or {}).items() if before.get(key) != value})
    removed: dict[str, str | None] = {key: None for key in before if not key.startswith(_SERVER_PREFIX)}
    return removed | dict(new or {})
