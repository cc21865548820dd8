"""Triggers that record changes as events: in the transaction of the change, whoever makes it.

A trigger misses no statement, present or future, and costs no round trip to PostgreSQL. While no events are recorded
(`event_streams` is empty) it does nothing else than look there.

What an event says is SQL of both databases; `quote(…)` is a text in JSON, `member(…)` that of an object. No event has
values of properties, documents of policies, hashes of keys, or errors of jobs: a receiver that may see those asks.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiltyard.model.views.plain_views import QUERY_PROPERTY
from tiltyard.store.sqlite.connection import SqliteConnection
from tiltyard.store.tables.upkeep import UPKEEP

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection

NAMESPACE_PATH = """(
    WITH RECURSIVE up (parent_id, path) AS (
        SELECT parent_id, quote(name) FROM namespaces WHERE id = {namespace} AND parent_id IS NOT NULL
        UNION ALL
        SELECT above.parent_id, quote(above.name) || ',' || up.path FROM up JOIN namespaces above
            ON above.id = up.parent_id WHERE above.parent_id IS NOT NULL
    ) SELECT path FROM up WHERE parent_id = 1)"""
"""The names from the root to a namespace, without the brackets of a list; NULL for the root."""
IS_RECORDING = "EXISTS (SELECT 1 FROM event_streams)"
HAS_CALLS = "EXISTS (SELECT 1 FROM event_streams WHERE has_calls)"


def _namespace_path(namespace: str) -> str:
    return f"'[' || COALESCE({NAMESPACE_PATH.format(namespace=namespace)}, '') || ']'"


def _table_path(row: str) -> str:
    above = NAMESPACE_PATH.format(namespace=f"{row}.namespace_id")
    return f"'[' || COALESCE({above} || ',', '') || quote({row}.name) || ']'"


def _truth(condition: str) -> str:
    return f"CASE WHEN {condition} THEN json('true') ELSE json('false') END"


def _is_in_trash(what: str, row: str, condition: str = "") -> str:
    return f"EXISTS (SELECT 1 FROM removed_{what} WHERE id = {row}.id{condition})"


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about, as SQL: the object as it is then, and where its values come from."""

    kind: str
    object_id: str = "NULL"
    namespace_id: str = "NULL"
    path: str = "NULL"
    source: str = ""


SERVER = Subject("server")


def _table_of_row(row: str) -> Subject:
    return Subject("table", f"{row}.id", f"{row}.namespace_id", _table_path(row))


def _table_of_id(table_id: str, condition: str = "") -> Subject:
    """Return a table that has to be there, and may not be below a mount: another catalog decides about that."""
    source = f"FROM tables WHERE tables.id = {table_id} AND tables.mount_id IS NULL{condition}"
    return Subject("table", "tables.id", "tables.namespace_id", _table_path("tables"), source)


def _namespace_of_row(row: str) -> Subject:
    return Subject("namespace", f"{row}.id", f"{row}.id", _namespace_path(f"{row}.id"))


def _namespace_of_id(namespace_id: str) -> Subject:
    source = f"FROM namespaces WHERE namespaces.id = {namespace_id} AND namespaces.mount_id IS NULL"
    return Subject("namespace", "namespaces.id", "namespaces.id", _namespace_path("namespaces.id"), source)


JOB = Subject(
    "job", "NEW.table_id", "NEW.namespace_id", f"(SELECT {_table_path('tables')} FROM tables WHERE id = NEW.table_id)"
)


@dataclass(frozen=True, slots=True)
class Trigger:
    """A change of a table of the database that is an event: its type and what it says as SQL, and `when` it is one."""

    name: str
    change: str
    table: str
    type: str
    subject: Subject
    data: Mapping[str, str] = field(default_factory=dict)
    when: str = "TRUE"
    other_namespace_id: str = "NULL"
    event_id: str = ""
    is_recorded: str = IS_RECORDING


INSERT, UPDATE, DELETE, DROP = "AFTER INSERT", "AFTER UPDATE", "AFTER DELETE", "BEFORE DELETE"
NEW_IS_OURS, OLD_IS_OURS = "NEW.mount_id IS NULL", "OLD.mount_id IS NULL"


def _created(kind: str) -> str:
    return f"CASE WHEN {_is_in_trash(f'{kind}s', 'NEW')} THEN '{kind}.undropped' ELSE '{kind}.created' END"


def _kind_of_table(row: str) -> str:
    return f"CASE WHEN {row}.properties LIKE '%{QUERY_PROPERTY}%' THEN 'view' ELSE 'table' END"


NAMESPACES = (
    Trigger(
        "namespace_created", INSERT, "namespaces", _created("namespace"), _namespace_of_row("NEW"), when=NEW_IS_OURS
    ),
    Trigger(
        "namespace_altered",
        UPDATE,
        "namespaces",
        "'namespace.altered'",
        _namespace_of_row("NEW"),
        {"changed": "'properties'"},
        f"{NEW_IS_OURS} AND NEW.properties <> OLD.properties",
    ),
    Trigger(
        "namespace_dropped",
        DROP,
        "namespaces",
        "'namespace.dropped'",
        _namespace_of_row("OLD"),
        {"restorable": _truth(_is_in_trash("namespaces", "OLD"))},
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
        _table_of_row("NEW"),
        {
            "object": _kind_of_table("NEW"),
            "declared": _truth("NEW.declared"),
            "registered": _truth("NEW.registered"),
        },
        NEW_IS_OURS,
    ),
    Trigger(
        "table_renamed",
        UPDATE,
        "tables",
        "'table.renamed'",
        _table_of_row("NEW"),
        {"object": _kind_of_table("NEW"), "old_id": f"json({_table_path('OLD')})"},
        f"{NEW_IS_OURS} AND (NEW.name <> OLD.name OR NEW.namespace_id <> OLD.namespace_id)",
        "OLD.namespace_id",
    ),
    Trigger(
        "table_altered",
        UPDATE,
        "tables",
        "'table.altered'",
        _table_of_row("NEW"),
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
        f"CASE WHEN {_is_in_trash('tables', 'OLD', ' AND NOT dropped')}"
        " THEN 'table.deregistered' ELSE 'table.dropped' END",
        _table_of_row("OLD"),
        {"object": _kind_of_table("OLD"), "restorable": _truth(_is_in_trash("tables", "OLD"))},
        OLD_IS_OURS,
    ),
    Trigger("view_defined", INSERT, "views", "'view.defined'", _table_of_id("NEW.table_id")),
    Trigger(
        "view_redefined",
        UPDATE,
        "views",
        "'view.defined'",
        _table_of_id("NEW.table_id"),
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
        _table_of_id("NEW.table_id", " AND NOT EXISTS (SELECT 1 FROM removed_tables WHERE id = NEW.table_id)"),
        {"version": "NEW.version", "branch": "NULLIF(NEW.branch, '')", "transaction": "NEW.transaction_id"},
    ),
    Trigger(
        "lineage_recorded",
        INSERT,
        "lineage",
        "'table.lineage.recorded'",
        _table_of_id("NEW.table_id"),
        {
            "version": "NEW.version",
            "branch": "NULLIF(NEW.branch, '')",
            "lineage": "NEW.id",
            "job": "NEW.job",
            "made_by": "NEW.kind",
            "replaces": _truth("NEW.replaces = 1"),
        },
    ),
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
    *_grants_on("namespace", _namespace_of_id("NEW.object_id"), _namespace_of_id("OLD.object_id")),
    *_grants_on("table", _table_of_id("NEW.object_id"), _table_of_id("OLD.object_id")),
)
_POLICY = {"policy": "NEW.name", "changed_by": "NEW.set_by"}
_KEY = {"principal": "NEW.principal", "key": "NEW.id", "expires_at_millis": "NEW.expires_at"}
_PRINCIPAL = {
    "principal": "NEW.name",
    "administrator": _truth("NEW.administrator"),
    "disabled": _truth("NEW.disabled"),
}
_MEMBER, _FORMER_MEMBER = ({"role": f"{row}.role", "member": f"{row}.member"} for row in ("NEW", "OLD"))
_WAS_REVOKED = "NEW.revoked_at IS NOT NULL AND OLD.revoked_at IS NULL"
_EXPIRES = "NEW.revoked_at IS NULL AND NEW.expires_at IS DISTINCT FROM OLD.expires_at"
_IS_ALTERED = "NEW.administrator <> OLD.administrator OR NEW.disabled <> OLD.disabled"
ACCESS = (
    Trigger("policy_set", INSERT, "policies", "'policy.set'", _table_of_id("NEW.table_id"), _POLICY),
    Trigger("policy_replaced", UPDATE, "policies", "'policy.set'", _table_of_id("NEW.table_id"), _POLICY),
    Trigger(
        "policy_dropped", DELETE, "policies", "'policy.dropped'", _table_of_id("OLD.table_id"), {"policy": "OLD.name"}
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
TRIGGERS = (*NAMESPACES, *TABLES, *DATA, *JOBS, *GRANTS, *ACCESS, AUDIT)


def create_triggers(connection: Connection) -> None:
    """Create the triggers, in the transaction of a migration."""
    create = _create_in_sqlite if isinstance(connection, SqliteConnection) else _create_in_postgres
    for trigger in TRIGGERS:
        for statement in create(trigger):
            connection.change(statement)


def _insertion(trigger: Trigger, now: str, new_id: str, make_object: str) -> str:
    subject = trigger.subject
    pairs = ", ".join(f"'{name}', {value}" for name, value in trigger.data.items())
    return f"""
        INSERT INTO events (event_id, at, type, kind, object_id, namespace_id, other_namespace_id, path, data)
        SELECT {trigger.event_id or new_id}, {now}, {trigger.type}, '{subject.kind}', {subject.object_id},
            {subject.namespace_id}, {trigger.other_namespace_id}, {subject.path}, {make_object.format(pairs=pairs)}
        {subject.source}"""


def _create_in_sqlite(trigger: Trigger) -> list[str]:
    now = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
    insertion = _insertion(trigger, now, "lower(hex(randomblob(16)))", "json_object({pairs})")
    written = _replaced(insertion, "json_quote({0})", "json_extract({0}, '$.{1}')")
    head = f"CREATE TRIGGER events_{trigger.name} {trigger.change} ON {trigger.table}"
    return [f"{head} WHEN {trigger.is_recorded} AND ({trigger.when}) BEGIN {written}; END"]


def _create_in_postgres(trigger: Trigger) -> list[str]:
    now = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
    new_id = "replace(CAST(gen_random_uuid() AS TEXT), '-', '')"
    insertion = _insertion(trigger, now, new_id, "CAST(json_build_object({pairs}) AS TEXT)")
    written = _replaced(insertion, "CAST(to_json(CAST({0} AS TEXT)) AS TEXT)", "(CAST({0} AS json) ->> '{1}')")
    row = "OLD" if trigger.change == DROP else "NULL"
    body = f"BEGIN IF {trigger.is_recorded} THEN {written}; END IF; RETURN {row}; END"
    head = f"CREATE TRIGGER events_{trigger.name} {trigger.change} ON {trigger.table} FOR EACH ROW"
    return [
        f"CREATE FUNCTION events_{trigger.name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$",
        f"{head} WHEN ({trigger.when}) EXECUTE FUNCTION events_{trigger.name}()",
    ]


def _replaced(sql: str, quote: str, member: str) -> str:
    """Write what the databases have different words for in the words of one."""
    sql = re.sub(r"\bquote\(([\w.]+)\)", lambda found: quote.format(found[1]), sql)
    return re.sub(r"\bmember\(([\w.]+), (\w+)\)", lambda found: member.format(found[1], found[2]), sql)
