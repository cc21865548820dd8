"""Tables: their columns, properties, key, contract and indexes. Rows are none of a declaration."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tiltyard.contracts.contract import PROPERTY as CONTRACT
from tiltyard.contracts.contract import Clients, Level
from tiltyard.declarations.kind import Kind, Target, id_of
from tiltyard.declarations.kinds.columns import (
    Column,
    FunctionCall,
    column_content,
    column_facts,
    parse_columns,
    read_columns,
    to_field,
)
from tiltyard.declarations.kinds.functions import find_function_version
from tiltyard.declarations.kinds.indexes import Index, create_index, parse_indexes, read_indexes
from tiltyard.model.columns.computed_columns import SCALAR, VIEW
from tiltyard.model.columns.index_parameters import UNTOLD
from tiltyard.model.columns.primary_keys import PROPERTY as KEY
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.arrow_json import to_json
from tiltyard.model.text.yaml_text import ContentError
from tiltyard.model.views.plain_views import QUERY_PROPERTY
from tiltyard.upkeep.thresholds import is_upkeep_property

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference

_SERVER_PREFIX = "tiltyard."
_KEY_INDEX = "{}_primary_key_idx"
"""The name of the index that SetTablePrimaryKey builds on a column that has none: it belongs to the key."""
_BY_CODE = "A column of it is computed by pickled code, which a file cannot have: register it as a function."
_NAMED = 2
"""The length of the path of a column or an index as a whole."""
_NOT_REMOVED = "no operation removes a property"


class TableContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The contract of a table."""

    checks: list[str]
    on_failure: Level = Level.FAIL
    clients: Clients = Clients.CHECK


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table; one without columns is only declared, and whoever writes to it first gives it some."""

    columns: dict[str, Any] | None = None
    properties: dict[str, str] = {}
    primary_key: list[str] | None = None
    contract: TableContract | None = None
    indexes: dict[str, Any] = {}


class Tables(Kind[Table]):
    """Tables; what is not in the file of a table that is stays, unless the caller says that it is to go."""

    section = "tables"
    noun = "table"
    declaration = Table
    securable = "table"
    parts = frozenset(
        {("columns",), ("columns", "*"), ("columns", "*", "metadata"), ("properties",), ("indexes",), ("indexes", "*")}
        | {("indexes", "*", "options")}
    )

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, Table]:
        """Return the id and the table, its columns and indexes in their one form. Raises ContentError."""
        name, table = super().parse(name, content, path)
        columns = None
        if table.columns is not None:
            parsed = parse_columns(table.columns, (*path, "columns"))
            columns = {each: column_content(column) for each, column in parsed.items()}
        elif table.primary_key or table.contract or table.indexes:
            raise ContentError(path, "a key, a contract and indexes are of columns: name those of the table.")
        indexes = parse_indexes(table.indexes, (*path, "indexes"))
        for each in set(indexes) & {_KEY_INDEX.format(column) for column in table.primary_key or ()}:
            raise ContentError((*path, "indexes", each), "the primary key has this index by itself: leave it out.")
        reserved = [key for key in table.properties if not _is_own_property(key)]
        if reserved:
            raise ContentError(
                (*path, "properties", reserved[0]), "this property is the server's to set: leave it out."
            )
        contents = {each: msgspec.to_builtins(index) for each, index in indexes.items()}
        return name, msgspec.structs.replace(table, columns=columns, indexes=contents)

    def read(self, catalog: CatalogContent) -> dict[str, Table]:
        """Return the tables, without views."""
        found = {}
        for name, description in catalog.tables.items():
            if is_table(description):
                with catalog.leaving_out(self.section, name):
                    try:
                        found[name] = _read_table(catalog, name, description)
                    except RefusedError as error:
                        catalog.leave_out(self.section, name, str(error))
        return found

    def facts(self, declared: Table) -> Mapping[str, Any]:
        """Return the parts of a table, columns and indexes by name."""
        facts = dict(super().facts(declared))
        if declared.columns is not None:
            facts["columns"] = {name: column_facts(column) for name, column in _columns(declared).items()}
        facts["indexes"] = {name: {"options": {}, **index} for name, index in declared.indexes.items()}
        if declared.contract is not None:
            facts["contract"] = {name: getattr(declared.contract, name) for name in TableContract.__struct_fields__}
        return facts

    def differences(self, before: Table, after: Table) -> list[Difference]:
        """Return what differs: options of indexes only where the file has them, a computed column's type as well."""
        found = []
        for each in super().differences(before, after):
            if after.columns is None and each.path[0] != "properties":
                continue  # it is only declared by the file, and others have written to it
            match each.path:
                case ("columns", name, "type") if each.removes and _columns(after)[name].computed:
                    continue
                case ("columns", _, "type" | "computed"):
                    each = replace(each, needs_word=True)  # noqa: PLW2901  # as it is reported
                case ("indexes", _, "options", option) if each.removes or option in UNTOLD:
                    continue
                case ("properties", _) if each.removes:
                    each = replace(each, problem=_NOT_REMOVED)  # noqa: PLW2901  # the same
            found.append(each)
        return found

    def create(self, target: Target, name: str, declared: Table) -> None:
        """Create a table without rows, then what is declared of it."""
        table = id_of(name)
        own = {key: text for key, text in declared.properties.items() if not is_upkeep_property(key)} or None
        if declared.columns is None:
            target.calls.call("DeclareTable", id=table, properties=own)
        else:
            first, others = _split(_columns(declared))
            schema = pa.schema([to_field(each, column) for each, column in first.items()])
            rows = pa.RecordBatchReader.from_batches(schema, [])
            target.calls.write("CreateTable", rows, id=table, properties=own)
            _add_columns(target, table, others)
        _set_properties(
            target, table, {key: declared.properties[key] for key in declared.properties if is_upkeep_property(key)}
        )
        for each, index in declared.indexes.items():
            create_index(target.calls, table, each, msgspec.convert(index, Index))
        if declared.primary_key:
            target.calls.call("SetTablePrimaryKey", id=table, columns=declared.primary_key)
        if declared.contract is not None:
            _set_contract(target, table, declared.contract)

    def change(self, target: Target, name: str, before: Table, after: Table, differences: Sequence[Difference]) -> None:
        """Make the differences: what is in the way of others goes first; a declared table gets its first version."""
        if any(each.path == ("columns",) for each in differences):
            self.create(target, name, after)
            return
        _TableChange(target, id_of(name), after, differences).make()

    def delete(self, target: Target, name: str, declared: Table) -> None:
        """Drop a table, which can be brought back for as long as the server keeps what was dropped."""
        target.calls.call("DropTable", id=id_of(name))


class _TableChange:
    """The differences of one table, and the operations that make them, in order."""

    def __init__(self, target: Target, table: list[str], declared: Table, differences: Sequence[Difference]) -> None:
        self._target = target
        self._table = table
        self._declared = declared
        self._by_part: dict[str, list[Difference]] = {}
        for each in differences:
            self._by_part.setdefault(each.path[0], []).append(each)

    def make(self) -> None:
        """Make the differences. Raises lance_namespace.errors."""
        contract, key = self._one("contract"), self._one("primary_key")
        if contract is not None and contract.before is not None and (contract.removes or key is not None):
            self._call("DropTableContract")
        if key is not None and key.before is not None:
            self._call("DropTablePrimaryKey")
        self._drop_indexes()
        recomputed = self._change_columns()
        changed = {each.path[1]: each.after for each in self._by_part.get("properties", ())}
        _set_properties(self._target, self._table, changed)
        self._build_indexes(recomputed)
        if key is not None and key.after is not None:
            self._call("SetTablePrimaryKey", columns=self._declared.primary_key)
        if contract is not None and self._declared.contract is not None:
            _set_contract(self._target, self._table, self._declared.contract)

    def _one(self, part: str) -> Difference | None:
        return next(iter(self._by_part.get(part, ())), None)

    def _call(self, operation: str, **fields: Any) -> None:
        self._target.calls.call(operation, id=self._table, **fields)

    def _change_columns(self) -> Collection[str]:
        """Drop, alter and add columns; return those that were dropped and added, which something else computes now."""
        columns, found = _columns(self._declared), self._by_part.get("columns", [])
        recomputed = {each.path[1] for each in found if each.path[2:] == ("computed",)}
        dropped = [each.path[1] for each in found if len(each.path) == _NAMED and each.removes]
        if dropped or recomputed:
            self._call("AlterTableDropColumns", columns=[*dropped, *sorted(recomputed)])
        left = [each for each in found if each.path[1] not in recomputed]
        self._alter_columns(columns, left)
        new = {each.path[1] for each in left if len(each.path) == _NAMED and each.before is None} | recomputed
        _add_columns(self._target, self._table, {name: columns[name] for name in columns if name in new})
        metadata: dict[str, dict[str, str | None]] = {}
        for each in left:
            if each.path[2:3] == ("metadata",):
                metadata.setdefault(each.path[1], {})[each.path[3]] = each.after
        _set_metadata(self._target, self._table, metadata)
        return recomputed

    def _alter_columns(self, columns: Mapping[str, Column], found: Sequence[Difference]) -> None:
        alterations: dict[str, dict[str, Any]] = {}
        for each in found:
            name = each.path[1]
            if each.path[2:] == ("type",):
                kind = to_json(pa.schema([to_field(name, columns[name])])).fields[0].type
                alterations.setdefault(name, {"path": name})["data_type"] = msgspec.to_builtins(kind)
            elif each.path[2:] == ("nullable",):
                alterations.setdefault(name, {"path": name})["nullable"] = each.after
        if alterations:
            self._call("AlterTableAlterColumns", alterations=list(alterations.values()))

    def _drop_indexes(self) -> None:
        """Drop indexes before their columns are; those that move to another column as well."""
        for each in self._by_part.get("indexes", ()):
            if (len(each.path) == _NAMED and each.removes) or each.path[2:] == ("column",):
                self._call("DropTableIndex", index_name=each.path[1])

    def _build_indexes(self, recomputed: Collection[str]) -> None:
        """Build indexes that are new or differ, and again those of columns that were dropped and added."""
        found = self._by_part.get("indexes", ())
        names = [each.path[1] for each in found if not (len(each.path) == _NAMED and each.removes)]
        declared = {name: msgspec.convert(index, Index) for name, index in self._declared.indexes.items()}
        names += [name for name, index in declared.items() if index.column in recomputed]
        for name in dict.fromkeys(names):
            create_index(self._target.calls, self._table, name, declared[name], replaces=True)


def is_table(description: Mapping[str, Any]) -> bool:
    """Return whether what DescribeTable describes is a table, and neither a view nor a materialized one."""
    return QUERY_PROPERTY not in (description.get("properties") or {}) and f"{VIEW}kind" not in (
        description.get("metadata") or {}
    )


def read_contract(properties: Mapping[str, str]) -> TableContract | None:
    """Return the contract that properties of a table show."""
    text = properties.get(CONTRACT)
    return None if text is None else msgspec.json.decode(text, type=TableContract)


def _read_table(catalog: CatalogContent, name: str, description: Mapping[str, Any]) -> Table:
    """Return the declaration of a table. Raises RefusedError, and as ListTableIndices does."""
    properties = description.get("properties") or {}
    own = {key: text for key, text in sorted(properties.items()) if _is_own_property(key)}
    if description.get("schema") is None:
        return Table(properties=own)
    columns = dict(read_columns(description["schema"]))
    if None in columns.values():
        raise RefusedError(_BY_CODE)
    key = json.loads(properties[KEY]) if KEY in properties else None
    of_key = {_KEY_INDEX.format(column) for column in key or ()}
    indexes = read_indexes(catalog.calls, id_of(name))
    return Table(
        {each: column_content(column) for each, column in columns.items() if column is not None},
        own,
        key,
        read_contract(properties),
        {each: msgspec.to_builtins(index) for each, index in indexes.items() if each not in of_key},
    )


def _is_own_property(key: str) -> bool:
    return not key.startswith(_SERVER_PREFIX) or is_upkeep_property(key)


def _columns(declared: Table) -> dict[str, Column]:
    """Return the columns of a declaration, which are in their one form."""
    return {
        name: Column(type=content) if isinstance(content, str) else msgspec.convert(content, Column)
        for name, content in (declared.columns or {}).items()
    }


def _split(columns: Mapping[str, Column]) -> tuple[dict[str, Column], dict[str, Column]]:
    """Return the columns that a table is created with, those before the first computed one, and all others."""
    first = dict(itertools.takewhile(lambda item: item[1].computed is None, columns.items()))
    if not first:
        first = {name: column for name, column in columns.items() if column.computed is None}
    return first, {name: column for name, column in columns.items() if name not in first}


def _add_columns(target: Target, table: list[str], columns: Mapping[str, Column]) -> None:
    """Add columns in their order: runs of plain ones and of SQL at once, and those of one call of a function."""
    for call, group in itertools.groupby(columns.items(), key=lambda item: _call_of(item[1])):
        added = dict(group)
        if call is None:
            schema = to_json(pa.schema([to_field(name, column) for name, column in added.items()]))
            target.calls.call("AlterTableAddColumns", id=table, new_columns=[], schema=msgspec.to_builtins(schema))
            continue
        if isinstance(call, str):
            entries: list[dict[str, Any]] = [
                {"name": name, "computed": column.computed} for name, column in added.items()
            ]
            target.calls.call("AlterTableAddColumns", id=table, new_columns=entries)
        else:
            entries = [{"name": name, "all_null": True} for name in added]
            binding = _bind_function(target, added)
            target.calls.call("AlterTableAddColumns", id=table, new_columns=entries, function=binding)
        _set_metadata(target, table, {name: dict(column.metadata) for name, column in added.items() if column.metadata})


def _call_of(column: Column) -> Any:
    """Return what columns have in common that one request adds: the call of a function, "sql", or None."""
    if not isinstance(column.computed, FunctionCall):
        return None if column.computed is None else "sql"
    return msgspec.structs.replace(column.computed, result=None)


def _bind_function(target: Target, columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return the binding of a function to columns, as lancedb sends it. Raises InvalidInputError."""
    calls = {name: column.computed for name, column in columns.items() if isinstance(column.computed, FunctionCall)}
    call = next(iter(calls.values()))
    version = find_function_version(target, call.function, call.digest)
    *parent, name = id_of(call.function)
    reference = {
        "name": name,
        "namespace_path": parent,
        "object_id": version["object_id"],
        "version": version["version"],
        "manifest_digest": call.digest,
    }
    inputs = [
        {"parameter": parameter, "kind": "column", "value": {"path": column}}
        for parameter, column in call.inputs.items()
    ]
    application = {"function": reference, "inputs": inputs, "initialization": call.initialization}
    outputs = [{"result_field": each.result or SCALAR, "output_name": column} for column, each in calls.items()]
    return {"application": application, "outputs": outputs}


def _set_metadata(target: Target, table: list[str], metadata: Mapping[str, Mapping[str, str | None]]) -> None:
    updates = [{"path": name, "metadata": dict(each)} for name, each in metadata.items()]
    if updates:
        target.calls.call("UpdateFieldMetadata", id=table, updates=updates)


def _set_properties(target: Target, table: list[str], properties: Mapping[str, str]) -> None:
    if properties:
        target.calls.call("UpdateTable", id=table, updates=[], properties=dict(properties))


def _set_contract(target: Target, table: list[str], contract: TableContract) -> None:
    fields: dict[str, Any] = {"checks": contract.checks, "on_failure": contract.on_failure, "clients": contract.clients}
    # tables that its foreign keys refer to may come after this one
    target.calls.call("SetTableContract", id=table, allow_missing_references=True, **fields)
