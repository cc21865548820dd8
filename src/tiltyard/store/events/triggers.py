"""Triggers that record changes as events: in the transaction of the change, whoever makes it.

A trigger misses no statement, present or future, and costs no round trip to PostgreSQL. While no events are recorded
(`event_streams` is empty) it does nothing else than look there.

No event has values of properties, documents of policies, hashes of keys, or errors of jobs: a receiver that may see
those asks. Changes of what governs objects are in `governance`.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.model.views.plain_views import QUERY_PROPERTY
from tiltyard.store.events.governance import GOVERNANCE
from tiltyard.store.events.trigger import (
    DELETE,
    DROP,
    HAS_CALLS,
    INSERT,
    NEW_IS_OURS,
    OLD_IS_OURS,
    SERVER,
    UPDATE,
    Subject,
    Trigger,
    create_in_postgres,
    create_in_sqlite,
    is_in_trash,
    namespace_of_id,
    namespace_of_row,
    table_of_id,
    table_of_row,
    table_path,
    truth,
)
from tiltyard.store.sqlite.connection import SqliteConnection
from tiltyard.store.tables.upkeep import UPKEEP

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection


def _created(kind: str) -> str:
    return f"CASE WHEN {is_in_trash(f'{kind}s', 'NEW')} THEN '{kind}.undropped' ELSE '{kind}.created' END"


def _kind_of_table(row: str) -> str:
    return f"CASE WHEN {row}.properties LIKE '%{QUERY_PROPERTY}%' THEN 'view' ELSE 'table' END"


NAMESPACES = (
    Trigger(
        "namespace_created", INSERT, "namespaces", _created("namespace"), namespace_of_row("NEW"), when=NEW_IS_OURS
    ),
    Trigger(
        "namespace_altered",
        UPDATE,
        "namespaces",
        "'namespace.altered'",
        namespace_of_row("NEW"),
        {"changed": "'properties'"},
        f"{NEW_IS_OURS} AND NEW.properties <> OLD.properties",
    ),
    Trigger(
        "namespace_dropped",
        DROP,
        "namespaces",
        "'namespace.dropped'",
        namespace_of_row("OLD"),
        {"restorable": truth(is_in_trash("namespaces", "OLD"))},
        OLD_IS_OURS,
    ),
)
_ALTERED = {
    "primary_key": "NEW.primary_key IS DISTINCT FROM OLD.primary_key",
    "contract": "NEW.contract IS DISTINCT FROM OLD.contract",
    "declared": "NEW.declared <> OLD.declared",
    "properties": "NEW.properties <> OLD.properties",
}
"""What of a table is changed, and when that is so: the first one is told."""
TABLES = (
    Trigger(
        "table_created",
        INSERT,
        "tables",
        _created("table"),
        table_of_row("NEW"),
        {
            "object": _kind_of_table("NEW"),
            "declared": truth("NEW.declared"),
            "registered": truth("NEW.registered"),
        },
        NEW_IS_OURS,
    ),
    Trigger(
        "table_renamed",
        UPDATE,
        "tables",
        "'table.renamed'",
        table_of_row("NEW"),
        {"object": _kind_of_table("NEW"), "old_id": f"json({table_path('OLD')})"},
        f"{NEW_IS_OURS} AND (NEW.name <> OLD.name OR NEW.namespace_id <> OLD.namespace_id)",
        "OLD.namespace_id",
    ),
    Trigger(
        "table_altered",
        UPDATE,
        "tables",
        "'table.altered'",
        table_of_row("NEW"),
        {
            "object": _kind_of_table("NEW"),
            "changed": f"CASE {' '.join(f'''WHEN {when} THEN '{name}' ''' for name, when in _ALTERED.items())} END",
        },
        f"{NEW_IS_OURS} AND ({' OR '.join(_ALTERED.values())})",
    ),
    Trigger(
        "table_dropped",
        DROP,
        "tables",
        f"CASE WHEN {is_in_trash('tables', 'OLD', ' AND NOT dropped')}"
        " THEN 'table.deregistered' ELSE 'table.dropped' END",
        table_of_row("OLD"),
        {"object": _kind_of_table("OLD"), "restorable": truth(is_in_trash("tables", "OLD"))},
        OLD_IS_OURS,
    ),
    Trigger("view_defined", INSERT, "views", "'view.defined'", table_of_id("NEW.table_id")),
    Trigger(
        "view_redefined",
        UPDATE,
        "views",
        "'view.defined'",
        table_of_id("NEW.table_id"),
        when="NEW.definition <> OLD.definition",
    ),
)
DATA = (
    Trigger(
        "version_created",
        INSERT,
        "table_versions",
        "'table.version.created'",
        # The versions of a table that comes back come, too, while it is still in the trash.
        table_of_id("NEW.table_id", " AND NOT EXISTS (SELECT 1 FROM removed_tables WHERE id = NEW.table_id)"),
        {
            "version": "NEW.version",
            "branch": "NULLIF(NEW.branch, '')",
            "transaction": "NEW.transaction_id",
            "changed_rows": "json(NEW.changed_rows)",
        },
    ),
    Trigger(
        "lineage_recorded",
        INSERT,
        "lineage",
        "'table.lineage.recorded'",
        table_of_id("NEW.table_id"),
        {
            "version": "NEW.version",
            "branch": "NULLIF(NEW.branch, '')",
            "lineage": "NEW.id",
            "job": "NEW.job",
            "made_by": "NEW.kind",
            "replaces": truth("NEW.replaces = 1"),
        },
    ),
)
JOB = Subject(
    "job", "NEW.table_id", "NEW.namespace_id", f"(SELECT {table_path('tables')} FROM tables WHERE id = NEW.table_id)"
)
_JOB_DATA = {"job": "NEW.id", "job_kind": "NEW.kind", "requested_by": "NEW.asked_by"}
_IS_JOB = f"NEW.kind <> '{UPKEEP}'"
JOBS = (
    Trigger(
        "job_queued",
        INSERT,
        "transactions",
        "CASE NEW.status WHEN 'Running' THEN 'job.started' ELSE 'job.queued' END",
        JOB,
        _JOB_DATA,
        _IS_JOB,
    ),
    Trigger(
        "job_changed",
        UPDATE,
        "transactions",
        "CASE WHEN NEW.status = OLD.status AND NEW.paused_at IS DISTINCT FROM OLD.paused_at"
        " THEN CASE WHEN NEW.paused_at IS NULL THEN 'job.resumed' ELSE 'job.paused' END"
        " ELSE CASE NEW.status WHEN 'Running' THEN 'job.started' WHEN 'Queued' THEN 'job.requeued'"
        " ELSE 'job.' || lower(NEW.status) END END",
        JOB,
        {
            **_JOB_DATA,
            "attempt": "NEW.attempts",
            "rows": (
                "CASE WHEN NEW.status IN ('Succeeded', 'Failed', 'Canceled')"
                " THEN COALESCE(member(NEW.properties, rows), member(NEW.properties, num_indexed_rows)) END"
            ),
        },
        f"{_IS_JOB} AND (NEW.status <> OLD.status OR NEW.attempts > OLD.attempts"
        " OR NEW.paused_at IS DISTINCT FROM OLD.paused_at)",
    ),
)


def _grants_on(kind: str, new: Subject, old: Subject) -> tuple[Trigger, ...]:
    """Return the triggers of changes of grants on one kind of object, which has to be there."""
    data = {"grantee": "NEW.grantee", "privileges": "NEW.privileges", "changed_by": "NEW.granted_by"}
    changed, is_kind = "'grant.changed'", f"NEW.kind = '{kind}'"
    # One that is left without privileges is deleted next.
    is_other = "NEW.privileges <> OLD.privileges AND NEW.privileges <> 0"
    is_dropped, revoked = f"OLD.kind = '{kind}'", {"grantee": "OLD.grantee"}
    return (
        Trigger(f"{kind}_granted", INSERT, "grants", changed, new, data, is_kind),
        Trigger(f"{kind}_grant_changed", UPDATE, "grants", changed, new, data, f"{is_kind} AND {is_other}"),
        Trigger(f"{kind}_revoked", DELETE, "grants", "'grant.revoked'", old, revoked, is_dropped),
    )


GRANTS = (
    *_grants_on("server", SERVER, SERVER),
    *_grants_on("namespace", namespace_of_id("NEW.object_id"), namespace_of_id("OLD.object_id")),
    *_grants_on("table", table_of_id("NEW.object_id"), table_of_id("OLD.object_id")),
)
_POLICY = {"policy": "NEW.name", "changed_by": "NEW.set_by"}
_KEY = {"principal": "NEW.principal", "key": "NEW.id", "expires_at_millis": "NEW.expires_at"}
_PRINCIPAL = {
    "principal": "NEW.name",
    "administrator": truth("NEW.administrator"),
    "disabled": truth("NEW.disabled"),
}
_MEMBER, _FORMER_MEMBER = ({"role": f"{row}.role", "member": f"{row}.member"} for row in ("NEW", "OLD"))
_WAS_REVOKED = "NEW.revoked_at IS NOT NULL AND OLD.revoked_at IS NULL"
_EXPIRES = "NEW.revoked_at IS NULL AND NEW.expires_at IS DISTINCT FROM OLD.expires_at"
_IS_ALTERED = "NEW.administrator <> OLD.administrator OR NEW.disabled <> OLD.disabled"
ACCESS = (
    Trigger("policy_set", INSERT, "policies", "'policy.set'", table_of_id("NEW.table_id"), _POLICY),
    Trigger("policy_replaced", UPDATE, "policies", "'policy.set'", table_of_id("NEW.table_id"), _POLICY),
    Trigger(
        "policy_dropped", DELETE, "policies", "'policy.dropped'", table_of_id("OLD.table_id"), {"policy": "OLD.name"}
    ),
    Trigger("role_created", INSERT, "roles", "'role.created'", SERVER, {"role": "NEW.name"}),
    Trigger("role_dropped", DELETE, "roles", "'role.dropped'", SERVER, {"role": "OLD.name"}),
    Trigger("member_added", INSERT, "role_members", "'role.member.added'", SERVER, _MEMBER),
    Trigger("member_removed", DELETE, "role_members", "'role.member.removed'", SERVER, _FORMER_MEMBER),
    Trigger("principal_created", INSERT, "principals", "'principal.created'", SERVER, _PRINCIPAL),
    Trigger("principal_altered", UPDATE, "principals", "'principal.altered'", SERVER, _PRINCIPAL, _IS_ALTERED),
    Trigger("key_created", INSERT, "api_keys", "'key.created'", SERVER, _KEY),
    Trigger("key_revoked", UPDATE, "api_keys", "'key.revoked'", SERVER, _KEY, _WAS_REVOKED),
    Trigger("key_expires", UPDATE, "api_keys", "'key.altered'", SERVER, _KEY, _EXPIRES),
)
_CALL = ("principal", "method", "operation", "object", "outcome", "status", "code", "request_id", "address")
AUDIT = Trigger(
    "call_recorded",
    INSERT,
    "audit",
    "'audit.call'",
    Subject("call"),
    {
        "at_millis": "NEW.at",
        "record_id": "NEW.id",
        **{name: f"NEW.{name}" for name in _CALL},
        "duration_micros": "NEW.micros",
        "context": "json(NEW.context)",
    },
    event_id="NEW.id",
    is_recorded=HAS_CALLS,
)
TRIGGERS = (*NAMESPACES, *TABLES, *DATA, *JOBS, *GRANTS, *ACCESS, *GOVERNANCE, AUDIT)


def create_triggers(connection: Connection) -> None:
    """Create the triggers, in place of earlier ones, in the transaction of a migration: the last that adds some."""
    create = create_in_sqlite if isinstance(connection, SqliteConnection) else create_in_postgres
    for trigger in TRIGGERS:
        for statement in create(trigger):
            connection.change(statement)
