"""Operations on functions of clients: register, describe, list and drop versions. No server runs or imports their code.

A source is stored once, under its digest, in `_functions` of the root; a registration with the same definition as an
earlier version returns that one. Only Spark's Python workers that may run clients' code execute it.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import caller_rights
from tiltyard.access.needs import on_namespace, on_parent
from tiltyard.catalog.functions.secrets import find_namespace_id, find_secret_ids, may_have_secrets, read_definition
from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import FunctionDeclaration, read_declaration
from tiltyard.model.functions import Definition, check_function_name, parse_definition
from tiltyard.model.ids import Id, namespace_id, table_id
from tiltyard.model.jobs import job_result
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.operations import PoolName, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.roots import FUNCTIONS_FOLDER
from tiltyard.store import FunctionUse, NewFunction
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from tiltyard.context import Context
    from tiltyard.store import FunctionRecord, UnitOfWork

CREATE_FUNCTION = "create_function"
"""The kind of the transaction that a registration leaves, with the version in the property `function`."""

SOURCE = "source"
MAX_USES = 10_000
_MEDIA_TYPE = "application/vnd.tiltyard.function.v1+json"


@operation(needs=on_parent(Privilege.CREATE_FUNCTION, "function"), pool=PoolName.WRITES)
def create_function(ctx: Context, request: models.CreateFunctionRequest) -> models.CreateFunctionResponse:
    """Register a version of a function; the job that is returned has ended, and its result is the version.

    Who names a secret needs `manage_secrets` on its namespace. Raises UnsupportedOperationError (code of clients is
    switched off, another runtime), InvalidInputError (a definition that does not fit), NamespaceNotFoundError,
    TableNotFoundError (no such secret), PermissionDeniedError, ConcurrentModificationError.
    """
    path = _function_id(request.id)
    if not ctx.settings.udfs:
        raise UnsupportedOperationError("Functions are switched off: the server's setting 'udfs' allows them.")
    parent_id = find_namespace_id(ctx, path.parent, "Functions")
    definition, source = parse_definition(_definition_fields(request))
    _check_image(ctx, definition)
    secret_ids = find_secret_ids(ctx, definition)
    record = _add_version(ctx, parent_id, path.name, definition, source, secret_ids)
    version = msgspec.json.encode(_to_version(path, record)).decode()

    def work(catalog: UnitOfWork) -> models.CreateFunctionResponse:
        properties = {"function": version}
        status = TransactionStatus.SUCCEEDED
        job = catalog.create_transaction(
            CREATE_FUNCTION,
            None,
            {},
            properties,
            status,
            requested_by=ctx.principal.name,
            namespace_id=parent_id,
        )
        return models.CreateFunctionResponse(job_id=job.id)

    return ctx.transact(work)


@job_result(CREATE_FUNCTION)
def created_function(properties: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the version that a registration has made, as the result of its job."""
    version: dict[str, Any] = msgspec.json.decode(properties["function"])
    return version


def _definition_fields(request: models.CreateFunctionRequest) -> dict[str, Any]:
    fields = {
        "artifact": request.artifact,
        "signature": request.signature,
        "runtime": request.runtime,
        "secret_bindings": request.secret_bindings,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _check_image(ctx: Context, definition: Definition) -> None:
    image = definition.runtime.environment.image
    if image is not None and image not in ctx.settings.udf_images:
        raise InvalidInputError(f"The image '{image}' is not among those of the server's setting 'udf_images'.")


def _add_version(
    ctx: Context, parent_id: int, name: str, definition: Definition, source: bytes, secret_ids: Mapping[str, str]
) -> FunctionRecord:
    """Store the source, then the version. What is found of a source that was scheduled for deletion stays.

    A version of the same definition stays, too; where its secrets are not to be had any more, the caller is its
    registrant from now on.
    """
    text = definition.canonical_json()
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    artifact = f"{ctx.storage.root}/{FUNCTIONS_FOLDER}/{definition.artifact.digest.removeprefix('sha256:')}"
    _write_source(ctx, artifact, source)
    registrant = msgspec.json.encode(ctx.principal).decode()
    new = NewFunction(text.decode(), digest, artifact, ctx.principal.name, registrant, secret_ids)
    record = ctx.store.add_function(parent_id, name, new)
    if secret_ids and not may_have_secrets(ctx, record):
        ctx.store.replace_registrant(record.object_id, record.version, new)
    _write_source(ctx, artifact, source)  # a deletion may have ended between the two
    return record


def _write_source(ctx: Context, artifact: str, source: bytes) -> None:
    file = f"{artifact}/{SOURCE}"
    with lance_errors(artifact):
        if not ctx.storage.files(artifact).is_file(file):
            ctx.storage.files(artifact).write_if_not_exists(file, source)
    ctx.storage.make_durable([file])


def read_source(ctx: Context, record: FunctionRecord) -> bytes:
    """Read the source of a version. Raises InternalError if it is not what was registered."""
    definition = read_definition(record)
    with lance_errors(record.artifact):
        source = ctx.storage.files(record.artifact).read(f"{record.artifact}/{SOURCE}")
    if f"sha256:{hashlib.sha256(source).hexdigest()}" != definition.artifact.digest:
        raise InternalError("The source of the function is damaged in storage: register it again.")
    return source


@operation(needs=on_parent(Privilege.USE, "function"), changes=False)
def describe_function(ctx: Context, request: models.DescribeFunctionRequest) -> models.FunctionVersion:
    """Describe a version of a function, without `version` the latest one; not its source.

    Raises TableNotFoundError (no such function or version), InvalidInputError.
    """
    path = _function_id(request.id)
    return _to_version(path, find_function(ctx, path, request.version))


@operation(needs=on_namespace(Privilege.USE), changes=False)
def list_functions(ctx: Context, request: models.ListFunctionsRequest) -> models.ListFunctionsResponse:
    """List all versions of the functions of a namespace, by name and version. Raises NamespaceNotFoundError."""
    path = namespace_id(request.id)
    parent_id = find_namespace_id(ctx, path, "Functions")
    records, token = ctx.paging.fetch_page(
        f"functions {parent_id}",
        request.page_token,
        request.limit,
        lambda after, count: ctx.store.list_functions(parent_id, after, count),
        lambda record: (record.name, record.version),
    )
    entries = [
        models.FunctionEntry(name=record.name, definition=_to_version(Id((*path, record.name)), record))
        for record in records
    ]
    return models.ListFunctionsResponse(functions=entries, page_token=token)


@operation(needs=on_parent(Privilege.CREATE_FUNCTION, "function"))
def drop_function(ctx: Context, request: models.DropFunctionRequest) -> models.DropFunctionResponse:
    """Drop a function with all its versions, or with `only_version` just the one; `dropped` is false if it is gone.

    Raises InvalidTableStateError (a computed column uses it), InvalidInputError, TableNotFoundError (no such version).
    """
    path = _function_id(request.id)
    parent_id = find_namespace_id(ctx, path.parent, "Functions")
    if ctx.store.find_function(parent_id, path.name, None) is None:
        return models.DropFunctionResponse(dropped=False)
    record = find_function(ctx, path, request.version)
    version = record.version if request.only_version else None
    _check_unused(ctx, path, record, version)
    due = ctx.clock() + ctx.settings.retention_ms
    return models.DropFunctionResponse(dropped=ctx.store.drop_function(record.object_id, version, due))


def _check_unused(ctx: Context, path: Id, record: FunctionRecord, version: int | None) -> None:
    """Raise InvalidTableStateError if a column is computed by a version; forget the uses that have ended."""
    for use in ctx.store.function_uses(record.object_id, version, MAX_USES):
        column = _used_by(ctx, record.object_id, use)
        if column is not None:
            raise InvalidTableStateError(
                f"The function {path} computes the column {column}, by its version {use.version}: drop that first."
            )
        ctx.store.remove_function_use(record.object_id, use)


def _used_by(ctx: Context, object_id: str, use: FunctionUse) -> str | None:
    """Return the column that a function computes, for a message; None if it computes none of the table any more.

    Raises ServiceUnavailableError if that cannot be looked up. The table's name is shown to those who see it alone.
    """
    try:
        table = ctx.store.table_by_id(use.table_id)
        schema = ctx.storage.datasets.open_for_reading(table.location, Branch.parse(use.branch or None)).schema
    except (TableNotFoundError, InvalidTableStateError):
        return None
    except LanceNamespaceError as error:
        if int(error.code) == _BRANCH_NOT_FOUND:
            return None
        raise
    column = next((field.name for field in schema if _is_computed_by(field, object_id, use.version)), None)
    if column is None:
        return None
    path = ctx.store.object_path(TABLE, table.id)
    is_visible = ctx.principal.administrator or caller_rights(ctx).on_table(table.id, table.namespace_id)
    return f"'{column}' of the table {Id(path)}" if path is not None and is_visible else "of a table"


def _is_computed_by(field: pa.Field, object_id: str, version: int) -> bool:
    """Return whether a version of a function computes a column, whatever the column was called when it was added."""
    declaration = read_declaration(field.metadata)
    if not isinstance(declaration, FunctionDeclaration):
        return False
    return (declaration.object_id, declaration.version) == (object_id, version)


_BRANCH_NOT_FOUND = 22


def find_function(ctx: Context, path: Id, version: str | None) -> FunctionRecord:
    """Return a version of a function, the latest one for None. Raises TableNotFoundError, InvalidInputError."""
    number = None if version is None else parse_version(version)
    record = ctx.store.find_function(find_namespace_id(ctx, path.parent, "Functions"), path.name, number)
    if record is None:
        raise function_not_found(path, version)
    return record


def parse_version(text: str) -> int:
    """Return the number of a version. Raises InvalidInputError."""
    if not (text.isascii() and text.isdigit() and len(text) <= _VERSION_DIGITS and text[0] != "0"):
        raise InvalidInputError("The version of a function is a decimal number from 1 on.")
    return int(text)


_VERSION_DIGITS = 18


def function_not_found(path: Id, version: str | None = None) -> TableNotFoundError:
    """Create the error for a function that does not exist, or has no such version."""
    return TableNotFoundError(f"Function not found: {path}{'' if version is None else f', version {version}'}")


def _to_version(path: Id, record: FunctionRecord) -> models.FunctionVersion:
    """Convert a version to what clients read."""
    definition = read_definition(record)
    bindings = msgspec.to_builtins(definition.secret_bindings)
    descriptor = {"mediaType": _MEDIA_TYPE, "digest": record.manifest_digest, "size": len(record.definition)}
    created = datetime.fromtimestamp(record.created_at / 1000, UTC)
    return models.FunctionVersion(
        name=path.name,
        namespace_path=list(path.parent),
        object_id=record.object_id,
        location=f"{FUNCTIONS_FOLDER}/{definition.artifact.digest.removeprefix('sha256:')}",
        version=str(record.version),
        image={"manifest_digest": record.manifest_digest, "descriptor": descriptor, "source": True},
        signature=msgspec.to_builtins(definition.signature),
        secret_bindings=bindings or None,
        created_at=created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        created_at_millis=record.created_at,
        metadata={},
        disabled=False,
    )


def _function_id(names: Sequence[str] | None) -> Id:
    path = table_id(names)
    check_function_name(path.name)
    return path
