"""The form of the triggers that record changes as events, and their statements in both databases.

What an event says is SQL of both databases; `quote(…)` is a text in JSON, `member(…)` that of an object.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NAMESPACE_PATH = """(
    WITH RECURSIVE up (parent_id, path) AS (
        SELECT own.parent_id, quote(own.name) FROM namespaces own
            WHERE own.id = {namespace} AND own.parent_id IS NOT NULL
        UNION ALL
        SELECT above.parent_id, quote(above.name) || ',' || up.path FROM up JOIN namespaces above
            ON above.id = up.parent_id WHERE above.parent_id IS NOT NULL
    ) SELECT path FROM up WHERE parent_id = 1)"""
"""The names from the root to a namespace, without the brackets of a list; NULL for the root.

`own` and `above` are not `namespaces`, so that {namespace} may be a column of that in the statement around it.
"""
IS_RECORDING = "EXISTS (SELECT 1 FROM event_streams)"
HAS_CALLS = "EXISTS (SELECT 1 FROM event_streams WHERE has_calls)"


def namespace_path(namespace: str) -> str:
    """Return the names of a namespace, by its id, as a list of JSON."""
    return f"'[' || COALESCE({NAMESPACE_PATH.format(namespace=namespace)}, '') || ']'"


def named_path(namespace_id: str, name: str) -> str:
    """Return the names of what is in a namespace, as a list of JSON."""
    above = NAMESPACE_PATH.format(namespace=namespace_id)
    return f"'[' || COALESCE({above} || ',', '') || quote({name}) || ']'"


def table_path(row: str) -> str:
    """Return the names of the table of a row."""
    return named_path(f"{row}.namespace_id", f"{row}.name")


def truth(condition: str) -> str:
    """Return a condition as a value of JSON."""
    return f"CASE WHEN {condition} THEN json('true') ELSE json('false') END"


def is_in_trash(what: str, row: str, condition: str = "") -> str:
    """Return whether the table or namespace of a row was removed and can be brought back."""
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


def table_of_row(row: str) -> Subject:
    """Return the table of a row."""
    return Subject("table", f"{row}.id", f"{row}.namespace_id", table_path(row))


def table_of_id(table_id: str, condition: str = "") -> Subject:
    """Return a table that has to be there, and may not be below a mount: another catalog decides about that."""
    source = f"FROM tables WHERE tables.id = {table_id} AND tables.mount_id IS NULL{condition}"
    return Subject("table", "tables.id", "tables.namespace_id", table_path("tables"), source)


def namespace_of_row(row: str) -> Subject:
    """Return the namespace of a row."""
    return Subject("namespace", f"{row}.id", f"{row}.id", namespace_path(f"{row}.id"))


def namespace_of_id(namespace_id: str) -> Subject:
    """Return a namespace that has to be there, and may not be below a mount."""
    source = f"FROM namespaces WHERE namespaces.id = {namespace_id} AND namespaces.mount_id IS NULL"
    return Subject("namespace", "namespaces.id", "namespaces.id", namespace_path("namespaces.id"), source)


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


def _insertion(trigger: Trigger, now: str, new_id: str, make_object: str) -> str:
    subject = trigger.subject
    pairs = ", ".join(f"'{name}', {value}" for name, value in trigger.data.items())
    return f"""
        INSERT INTO events (event_id, at, type, kind, object_id, namespace_id, other_namespace_id, path, data)
        SELECT {trigger.event_id or new_id}, {now}, {trigger.type}, '{subject.kind}', {subject.object_id},
            {subject.namespace_id}, {trigger.other_namespace_id}, {subject.path}, {make_object.format(pairs=pairs)}
        {subject.source}"""


def create_in_sqlite(trigger: Trigger) -> list[str]:
    """Return the statements that create a trigger anew in SQLite."""
    now = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
    insertion = _insertion(trigger, now, "lower(hex(randomblob(16)))", "json_object({pairs})")
    written = _replaced(insertion, "json_quote({0})", "json_extract({0}, '$.{1}')")
    head = f"CREATE TRIGGER events_{trigger.name} {trigger.change} ON {trigger.table}"
    drop = f"DROP TRIGGER IF EXISTS events_{trigger.name}"
    return [drop, f"{head} WHEN {trigger.is_recorded} AND ({trigger.when}) BEGIN {written}; END"]


def create_in_postgres(trigger: Trigger) -> list[str]:
    """Return the statements that create a trigger anew in PostgreSQL."""
    now = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
    new_id = "replace(CAST(gen_random_uuid() AS TEXT), '-', '')"
    insertion = _insertion(trigger, now, new_id, "CAST(json_build_object({pairs}) AS TEXT)")
    written = _replaced(insertion, "CAST(to_json(CAST({0} AS TEXT)) AS TEXT)", "(CAST({0} AS json) ->> '{1}')")
    row = "OLD" if trigger.change == DROP else "NULL"
    body = f"BEGIN IF {trigger.is_recorded} THEN {written}; END IF; RETURN {row}; END"
    head = f"CREATE TRIGGER events_{trigger.name} {trigger.change} ON {trigger.table} FOR EACH ROW"
    return [
        f"DROP FUNCTION IF EXISTS events_{trigger.name}() CASCADE",
        f"CREATE FUNCTION events_{trigger.name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$",
        f"{head} WHEN ({trigger.when}) EXECUTE FUNCTION events_{trigger.name}()",
    ]


def _replaced(sql: str, quote: str, member: str) -> str:
    """Write what the databases have different words for in the words of one."""
    sql = re.sub(r"\bquote\(([\w.]+)\)", lambda found: quote.format(found[1]), sql)
    return re.sub(r"\bmember\(([\w.]+), (\w+)\)", lambda found: member.format(found[1], found[2]), sql)
