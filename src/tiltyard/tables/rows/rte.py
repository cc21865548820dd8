"""lancedb's real-time engine (RTE, formerly LSM): a specification that is stored with a table, and what it promises.

In lancedb an engine collects rows in a write-ahead log (Lance's MemWAL) before they come into the table. This server
has no such log: an acknowledged row is in the table, where the next search finds it, and appends that wait together
share a commit (`append_queue`). So what the engine promises of acknowledged rows is true of every table; the
specification says that a caller counts on it, and `use_rte: true` in queries and merges asks for it. What belongs to a
log is empty: no shards, no memtables, no SSTables.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError
from msgspec import structs

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.columns.primary_keys import PROPERTY as KEY_PROPERTY
from tiltyard.model.columns.primary_keys import is_key_type, unenforced_key
from tiltyard.model.ids import table_id
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import check_rte_enabled, find_table, open_for_reading
from tiltyard.tables.rte_specification import PROPERTY, RteSpec
from tiltyard.tables.schema.field_paths import find_field
from tiltyard.tables.schema.properties import change_properties
from tiltyard.tables.upkeep.upkeep_job import start_upkeep
from tiltyard.upkeep.indexing import user_indexes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance
    import pyarrow as pa

    from tiltyard.context import Context, OpenTable


@operation(needs=on_table(Privilege.ALTER))
def enable_table_rte(ctx: Context, request: models.EnableTableRteRequest) -> models.EnableTableRteResponse:
    """Store a specification with a table; the same one again is no change.

    Raises InvalidInputError (what does not fit the table, an index that it does not have, a branch, another
    specification that is set), TableColumnNotFoundError, what opening a table raises, UnsupportedOperationError (below
    a mount whose catalog keeps no properties).
    """
    _check_main(request.branch)
    fields = {"sharding": request.sharding, "maintained_indexes": request.maintained_indexes}
    spec = RteSpec.parse(fields | {"writer_config_defaults": request.writer_config_defaults or {}})
    table = open_for_reading(ctx, request.id)
    with lance_errors(table.dataset):
        spec = _fitting(spec, table)
    if (before := RteSpec.of(table.record.properties)) == spec:
        return models.EnableTableRteResponse()
    if before is not None:
        raise InvalidInputError(
            "This table has an RTE specification, whose mutation is not supported: disable it first."
        )
    change_properties(ctx, table_id(request.id), find_table(ctx, request.id), {PROPERTY: spec.to_json()})
    return models.EnableTableRteResponse()


@operation(needs=on_table(Privilege.ALTER))
def disable_table_rte(ctx: Context, request: models.DisableTableRteRequest) -> models.DisableTableRteResponse:
    """Remove a table's specification; no row is lost by that. Raises InvalidInputError (there is none), as enabling."""
    _check_main(request.branch)
    table = find_table(ctx, request.id)
    if PROPERTY not in table.properties:
        raise InvalidInputError("This table has no RTE specification to remove (no LSM write spec).")
    change_properties(ctx, table_id(request.id), table, {PROPERTY: None})
    return models.DisableTableRteResponse()


@operation(needs=on_table(Privilege.USE), changes=False)
def get_table_rte_spec(ctx: Context, request: models.GetTableRteSpecRequest) -> models.GetTableRteSpecResponse:
    """Return a table's specification, none where it has none; `lsm_write_spec` names the indexes, if they are all.

    lancedb calls this before it reads rows by their ids. Raises what opening a table raises.
    """
    table = _open(ctx, request.id, request.branch)
    if (spec := RteSpec.of(table.record.properties)) is None:
        return models.GetTableRteSpecResponse()
    with lance_errors(table.dataset):
        shown = _shown(spec, table.dataset)
        indexes = shown["maintained_indexes"]
        named = [index.name for index in user_indexes(table.dataset)] if indexes is None else indexes
    return models.GetTableRteSpecResponse(rte_spec=shown, lsm_write_spec=shown | {"maintained_indexes": named})


@operation(needs=on_table(Privilege.USE), changes=False)
def get_table_rte_stats(ctx: Context, request: models.GetTableRteStatsRequest) -> models.GetTableRteStatsResponse:
    """Return that there are no shards; nothing for a table without a specification. Raises what opening one raises."""
    if RteSpec.of(_open(ctx, request.id, request.branch).record.properties) is None:
        return models.GetTableRteStatsResponse()
    return models.GetTableRteStatsResponse(rte_stats={"table_shards": []}, lsm_stats={"buckets": []})


@operation(needs=on_table(Privilege.WRITE), changes=False)
def flush_table_rte(ctx: Context, request: models.FlushTableRteRequest) -> models.FlushTableRteResponse:
    """Return at once: no acknowledged row waits in memory. Raises what opening a table raises."""
    _open(ctx, request.id, request.branch)
    return models.FlushTableRteResponse()


@operation(needs=on_table(Privilege.WRITE), changes=False)
def compact_table_rte(ctx: Context, request: models.CompactTableRteRequest) -> models.CompactTableRteResponse:
    """Start the upkeep of a table (small fragments, rows that no index has) if it is due for any, without waiting.

    No SSTable waits to come into the table, so there is no more to do. Raises what opening a table raises.
    """
    table = _open(ctx, request.id, request.branch)
    if RteSpec.of(table.record.properties) is not None:
        start_upkeep(ctx, table.record, "compact_rte")
    return models.CompactTableRteResponse()


def check_upsert(ctx: Context, request: models.MergeInsertIntoTableRequest, schema: pa.Schema) -> None:
    """Check that a merge with `use_rte: true` is an upsert by the table's key. Raises InvalidInputError."""
    check_rte_enabled(ctx, request.id)
    key = _key(find_table(ctx, request.id).properties, schema)
    if not key:
        raise InvalidInputError("An upsert of the RTE is by the table's primary key: set_unenforced_primary_key first.")
    if set(request.on or ()) != set(key):
        raise InvalidInputError(f"An upsert of the RTE is by the table's primary key: on {', '.join(key)}.")
    others = (
        request.when_matched_update_all_filt,
        request.when_not_matched_by_source_delete,
        request.when_not_matched_by_source_delete_filt,
    )
    if not (request.when_matched_update_all and request.when_not_matched_insert_all) or any(others):
        raise InvalidInputError(
            "The RTE takes an upsert alone (update all that match, insert all others): leave use_rte out for this."
        )


def _key(properties: Mapping[str, str], schema: pa.Schema) -> list[str]:
    """Return the columns of a table's key: the enforced one, or else what Lance's schema declares."""
    enforced: list[str] = json.loads(properties.get(KEY_PROPERTY, "[]"))
    return enforced or unenforced_key(schema)


def _fitting(spec: RteSpec, table: OpenTable) -> RteSpec:
    """Return a specification with the id of its column. Raises InvalidInputError, TableColumnNotFoundError."""
    sharding, names = spec.sharding, [index.name for index in user_indexes(table.dataset)]
    if missing := sorted(set(spec.maintained_indexes or ()) - set(names)):
        listed = ", ".join(sorted(names)) or "none"
        raise InvalidInputError(f"This table has no index '{missing[0]}' to maintain; its indexes: {listed}.")
    if sharding.column is None:
        return spec
    found = find_field(table.dataset, sharding.column)
    if not is_key_type(found.to_arrow().type):
        raise InvalidInputError(f"Rows cannot be sharded by '{sharding.column}': name a column of plain values.")
    key = _key(table.record.properties, table.dataset.schema)
    if sharding.mode == "bucket" and key and key != [sharding.column]:
        raise InvalidInputError(f"Buckets are made of the table's primary key ({', '.join(key)}), if it is one column.")
    return structs.replace(spec, sharding=structs.replace(sharding, field_id=found.id()))


def _shown(spec: RteSpec, dataset: lance.LanceDataset) -> dict[str, Any]:
    """Return a specification as clients set it, with its column's name of now."""
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    field_id = fields["sharding"].pop("field_id", None)
    for found in dataset.lance_schema.fields():
        if found.id() == field_id:
            fields["sharding"]["column"] = found.name()
    return fields


def _check_main(branch: str | None) -> None:
    if not Branch.parse(branch).is_main:
        raise InvalidInputError("An RTE specification is the table's, for all its branches: leave the branch out.")


def _open(ctx: Context, names: Sequence[str] | None, branch: str | None) -> OpenTable:
    return open_for_reading(ctx, names, branch=Branch.parse(branch))
