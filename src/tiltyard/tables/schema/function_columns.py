"""Columns that a version of a registered function computes, as AddColumns declares them; null until a backfill.

lancedb binds a function to columns (`fn(x=col("x"))`), and sends the binding beside the names of the new columns. What
is stored with a column is enough to find the function again: its id and version, and which columns it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableNotFoundError, UnsupportedOperationError

from tiltyard.access.authorization import authorize_namespace
from tiltyard.model.columns.computed_columns import SCALAR, FunctionDeclaration, read_declaration
from tiltyard.model.functions import Definition, parse_function_type
from tiltyard.model.ids import Id, table_id
from tiltyard.model.principals import Privilege
from tiltyard.store import FunctionUse
from tiltyard.tables.schema.computed_columns import check_udfs
from tiltyard.tables.schema.field_paths import arrow_field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.functions import Signature
    from tiltyard.model.spec import models
    from tiltyard.store import FunctionRecord

MAX_INITIALIZATION_BYTES = 64 << 10
BINDING_VERSION = 1


class _FunctionReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    object_id: str
    version: str
    manifest_digest: str
    location: str = ""
    namespace_path: tuple[str, ...] = ()


class _ColumnPath(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str


class _Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    parameter: str
    kind: str
    value: _ColumnPath


class _Application(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function applied to columns; `columns` renames fields of its result."""

    function: _FunctionReference
    inputs: tuple[_Input, ...]
    output: Any = None
    columns: dict[str, str] = {}
    initialization: dict[str, Any] = {}


class _OutputColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    result_field: str
    output_name: str
    output_ordinal: int = 0


class _Binding(msgspec.Struct, frozen=True):
    """lancedb's binding: of what it repeats of the schema, the table's own is taken."""

    application: _Application
    outputs: tuple[_OutputColumn, ...]
    binding_metadata_version: int = BINDING_VERSION


def function_fields(ctx: Context, request: models.AlterTableAddColumnsRequest) -> list[pa.Field]:
    """Return the fields of the columns that a function of the request computes.

    The caller needs `run_udfs` on the table and on the function's namespace. Raises InvalidInputError (a binding that
    does not fit the function), TableNotFoundError (no such version), PermissionDeniedError, UnsupportedOperationError
    (code of clients is switched off, a newer binding).
    """
    check_udfs(ctx, request.id)
    binding = _parse(request.function or {})
    reference = binding.application.function
    path = table_id((*reference.namespace_path, reference.name))
    if not ctx.is_unchecked:
        authorize_namespace(ctx, path.parent, Privilege.RUN_UDFS.value)
    record = _find(ctx, path, reference)
    signature = msgspec.json.decode(record.definition, type=Definition).signature
    inputs = _check_inputs(signature, binding.application.inputs)
    initialization = _check_initialization(signature, binding.application.initialization)
    types = signature.output_types()
    _check_outputs(types, binding, [entry.name for entry in request.new_columns])
    return [
        pa.field(
            output.output_name,
            types[output.result_field],
            metadata=FunctionDeclaration(
                function=tuple(path),
                object_id=record.object_id,
                version=record.version,
                manifest_digest=record.manifest_digest,
                inputs=inputs,
                result=output.result_field,
                initialization=initialization,
            ).metadata(),
        )
        for output in binding.outputs
    ]


def _parse(fields: Mapping[str, Any]) -> _Binding:
    try:
        binding = msgspec.convert(fields, _Binding)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The binding of the function does not fit: {error}.") from error
    if binding.binding_metadata_version != BINDING_VERSION:
        raise UnsupportedOperationError(f"This server knows bindings of version {BINDING_VERSION}.")
    return binding


def _find(ctx: Context, path: Id, reference: _FunctionReference) -> FunctionRecord:
    number = reference.version
    is_number = number.isascii() and number.isdigit() and len(number) < 19
    record = ctx.store.find_pinned_function(reference.object_id, int(number)) if is_number else None
    parent_id = ctx.store.describe_namespace(path.parent).id
    if (
        record is None
        or (record.namespace_id, record.name) != (parent_id, path.name)
        or record.manifest_digest != reference.manifest_digest
    ):
        raise TableNotFoundError(f"Function not found: {path}, version {number}: read it again.")
    return record


def _check_inputs(signature: Signature, inputs: Sequence[_Input]) -> tuple[tuple[str, str], ...]:
    """Return the column of each parameter, in the parameters' order."""
    if any(entry.kind != "column" for entry in inputs):
        raise UnsupportedOperationError("A function's inputs are columns.")
    paths = {entry.parameter: entry.value.path for entry in inputs}
    names = [parameter.name for parameter in signature.inputs]
    if len(paths) < len(inputs) or set(paths) != set(names):
        raise InvalidInputError(f"The function takes {', '.join(names)}: bind each of them to one column.")
    return tuple((name, paths[name]) for name in names)


def _check_initialization(signature: Signature, values: Mapping[str, Any]) -> str:
    """Return the values that instances are created with, as JSON, if they fit."""
    parameters = {parameter.name: parameter for parameter in signature.initialization}
    if unknown := sorted(values.keys() - parameters.keys()):
        raise InvalidInputError(f"The function has no initialization '{unknown[0]}'.")
    for name, parameter in parameters.items():
        value = values.get(name)
        if value is None and not parameter.nullable:
            raise InvalidInputError(f"The function needs the initialization '{name}'.")
        try:
            pa.array([value], parse_function_type(parameter.arrow_type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(f"The initialization '{name}' is no {parameter.arrow_type}: {error}.") from error
    text = msgspec.json.encode(dict(values), order="sorted").decode()
    if len(text) > MAX_INITIALIZATION_BYTES:
        raise InvalidInputError(f"An initialization has {MAX_INITIALIZATION_BYTES} bytes at most.")
    return text


def _check_outputs(types: Mapping[str, pa.DataType], binding: _Binding, names: Sequence[str]) -> None:
    fields, columns = [output.result_field for output in binding.outputs], [o.output_name for o in binding.outputs]
    if sorted(fields) != sorted(types):
        shown = "its value" if SCALAR in types else ", ".join(types)
        raise InvalidInputError(f"The function returns {shown}: bind each to one new column.")
    if sorted(columns) != sorted(names):
        raise InvalidInputError("The new columns are those that the function's binding names as its outputs.")


def check_function_inputs(ctx: Context, dataset: lance.LanceDataset, fields: Sequence[pa.Field]) -> None:
    """Check that the columns which functions read have the types of their parameters.

    Raises TableColumnNotFoundError, InvalidInputError.
    """
    for declaration in map(_declared, fields[:1]):
        record = ctx.store.find_pinned_function(declaration.object_id, declaration.version)
        if record is None:
            raise TableNotFoundError(f"Function not found: {Id(declaration.function)}")
        signature = msgspec.json.decode(record.definition, type=Definition).signature
        for parameter, (_, column) in zip(signature.inputs, declaration.inputs, strict=True):
            if "." in column:
                raise UnsupportedOperationError(f"A function reads whole columns, not the inner field '{column}'.")
            kind = arrow_field(dataset, column).type
            wanted = parse_function_type(parameter.arrow_type)
            if not _is_same_type(kind, wanted):
                raise InvalidInputError(f"The column '{column}' is {kind}, and '{parameter.name}' takes {wanted}.")


def _is_same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types are the same but for the nullability and names of items of lists."""
    if pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(other):
        return one.list_size == other.list_size and _is_same_type(one.value_type, other.value_type)
    for is_kind in (pa.types.is_list, pa.types.is_large_list):
        if is_kind(one) and is_kind(other):
            return _is_same_type(one.value_type, other.value_type)
    return bool(one == other)


def record_uses(ctx: Context, record_id: int, branch: str, fields: Sequence[pa.Field]) -> None:
    """Record which columns functions compute, before the commit that declares them: so none of them is dropped."""
    for field, declaration in zip(fields, map(_declared, fields), strict=True):
        use = FunctionUse(declaration.version, record_id, branch, field.name)
        ctx.store.add_function_use(declaration.object_id, use)


def _declared(field: pa.Field) -> FunctionDeclaration:
    declaration = read_declaration(field.metadata)
    assert isinstance(declaration, FunctionDeclaration)
    return declaration
