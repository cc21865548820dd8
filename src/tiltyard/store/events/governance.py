"""Triggers for changes of what governs objects, and of what namespaces hold besides tables.

Classifications, protections, quotas, approvals, erasures; mounts, publications, snapshots, functions, secrets;
schedules; ages.
No event has a reason, a document, a setting or a source; of a secret it has the name alone.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from tiltyard.store.events.trigger import (
    DELETE,
    DROP,
    INSERT,
    SERVER,
    UPDATE,
    Subject,
    Trigger,
    named_path,
    namespace_of_id,
    namespace_of_row,
    namespace_path,
    table_of_id,
    table_path,
    truth,
)


def _kept_table(table_id: str) -> Subject:
    """Return a table that is there, or can be brought back: a legal hold is lifted from one that was dropped, too."""
    above = "CASE WHEN namespace = '[]' THEN '[' ELSE substr(namespace, 1, length(namespace) - 1) || ',' END"
    source = f"""
        FROM (
            SELECT id, namespace_id, {table_path("tables")} AS path FROM tables
            WHERE tables.id = {table_id} AND tables.mount_id IS NULL
            UNION ALL
            SELECT id, namespace_id, {above} || quote(removed_tables.name) || ']' AS path FROM removed_tables
            WHERE removed_tables.id = {table_id} AND NOT EXISTS (SELECT 1 FROM tables WHERE id = {table_id})
        ) AS kept"""
    return Subject("table", "kept.id", "kept.namespace_id", "kept.path", source)


def _kept_namespace(namespace_id: str) -> Subject:
    """Return a namespace that is there, or can be brought back."""
    source = f"""
        FROM (
            SELECT id, {namespace_path("namespaces.id")} AS path FROM namespaces
            WHERE namespaces.id = {namespace_id} AND namespaces.mount_id IS NULL
            UNION ALL
            SELECT id, path FROM removed_namespaces
            WHERE removed_namespaces.id = {namespace_id} AND NOT EXISTS (
                SELECT 1 FROM namespaces WHERE id = {namespace_id}
            )
        ) AS kept"""
    return Subject("namespace", "kept.id", "kept.id", "kept.path", source)


def _table_of_column(column_id: str) -> Subject:
    source = (
        "FROM classified_columns JOIN tables ON tables.id = classified_columns.table_id"
        f" WHERE classified_columns.id = {column_id} AND tables.mount_id IS NULL"
    )
    return Subject("table", "tables.id", "tables.namespace_id", table_path("tables"), source)


def _schedule_of(row: str) -> Subject:
    """Return the subject of a schedule's events: as of a job, the table that it is about, seen as its jobs are."""
    path = f"(SELECT {table_path('tables')} FROM tables WHERE id = {row}.table_id)"
    source = f"FROM namespaces WHERE namespaces.id = {row}.namespace_id"
    return Subject("job", f"{row}.table_id", f"{row}.namespace_id", path, source)


def _classifications_of(kind: str, new: Subject, old: Subject, column: str = "NULL") -> tuple[Trigger, ...]:
    """Return the triggers of classifications of one kind of object."""
    value = {"key": "NEW.key", "value": "NEW.value", "column": column, "changed_by": "NEW.set_by"}
    is_kind, unset = f"NEW.kind = '{kind}'", {"key": "OLD.key", "column": column}
    changes = f"{is_kind} AND NEW.value <> OLD.value"
    named, was_kind = f"{kind}_classification", f"OLD.kind = '{kind}'"
    return (
        Trigger(f"{named}_set", INSERT, "classifications", "'classification.set'", new, value, is_kind),
        Trigger(f"{named}_changed", UPDATE, "classifications", "'classification.set'", new, value, changes),
        Trigger(f"{named}_unset", DELETE, "classifications", "'classification.unset'", old, unset, was_kind),
    )


CLASSIFICATIONS = (
    *_classifications_of("namespace", namespace_of_id("NEW.object_id"), namespace_of_id("OLD.object_id")),
    *_classifications_of("table", table_of_id("NEW.object_id"), table_of_id("OLD.object_id")),
    *_classifications_of(
        "column", _table_of_column("NEW.object_id"), _table_of_column("OLD.object_id"), "classified_columns.path"
    ),
    *(
        Trigger(
            f"classification_policy_{name}",
            change,
            "classification_policies",
            f"'classification.policy.{what}'",
            SERVER,
            {"policy": f"{row}.name"} | ({"changed_by": "NEW.set_by"} if row == "NEW" else {}),
        )
        for name, change, what, row in (
            ("set", INSERT, "set", "NEW"),
            ("replaced", UPDATE, "set", "NEW"),
            ("dropped", DELETE, "dropped", "OLD"),
        )
    ),
)


def _protections_of(kind: str, new: Subject, old: Subject) -> tuple[Trigger, ...]:
    """Return the triggers of protections of one kind of object, and of calls on it that need approval."""
    is_kind, was_kind = f"NEW.object_kind = '{kind}'", f"OLD.object_kind = '{kind}'"
    protection, lifted = (
        {"protection": f"{row}.kind", "operation": f"NULLIF({row}.operation, '')"} for row in ("NEW", "OLD")
    )
    by = {"changed_by": "NEW.set_by"}
    set_, approval = f"{kind}_protection", {"approval": "NEW.id", "operation": "NEW.operation"}
    asked = {**approval, "requested_by": "NEW.requested_by", "expires_at_millis": "NEW.expires_at"}
    decided = {**asked, "decided_by": "NEW.decided_by"}
    return (
        Trigger(f"{set_}_set", INSERT, "protections", "'protection.set'", new, protection | by, is_kind),
        Trigger(f"{set_}_replaced", UPDATE, "protections", "'protection.set'", new, protection | by, is_kind),
        Trigger(f"{set_}_lifted", DELETE, "protections", "'protection.lifted'", old, lifted, was_kind),
        Trigger(f"{kind}_approval_asked", INSERT, "approvals", "'approval.requested'", new, asked, is_kind),
        Trigger(
            f"{kind}_approval_changed",
            UPDATE,
            "approvals",
            "CASE WHEN NEW.used_at IS DISTINCT FROM OLD.used_at"
            " THEN CASE WHEN NEW.used_at IS NULL THEN 'approval.released' ELSE 'approval.used' END"
            " ELSE CASE WHEN NEW.approved THEN 'approval.approved' ELSE 'approval.denied' END END",
            new,
            decided,
            f"{is_kind} AND (NEW.used_at IS DISTINCT FROM OLD.used_at OR NEW.approved IS DISTINCT FROM OLD.approved)",
        ),
    )


PROTECTIONS = (
    *_protections_of("server", SERVER, SERVER),
    *_protections_of("namespace", _kept_namespace("NEW.object_id"), _kept_namespace("OLD.object_id")),
    *_protections_of("table", _kept_table("NEW.object_id"), _kept_table("OLD.object_id")),
)


def _quotas_of(kind: str, new: Subject, old: Subject, is_kind: str) -> tuple[Trigger, ...]:
    """Return the triggers of quotas of namespaces, or of principals, which are of the server."""
    limits = {"resource": "NEW.resource", "soft": "NEW.soft", "hard": "NEW.hard"}
    data = {"principal": "NULLIF(NEW.principal, '')", **limits, "changed_by": "NEW.set_by"}
    dropped = {"principal": "NULLIF(OLD.principal, '')", "resource": "OLD.resource"}
    was_kind, named = is_kind.replace("NEW", "OLD"), f"{kind}_quota"
    return (
        Trigger(f"{named}_set", INSERT, "quotas", "'quota.set'", new, data, is_kind),
        Trigger(f"{named}_changed", UPDATE, "quotas", "'quota.set'", new, data, is_kind),
        Trigger(f"{named}_dropped", DELETE, "quotas", "'quota.dropped'", old, dropped, was_kind),
    )


QUOTAS = (
    *_quotas_of("principal", SERVER, SERVER, "NEW.principal <> ''"),
    *_quotas_of(
        "namespace", namespace_of_id("NEW.namespace_id"), namespace_of_id("OLD.namespace_id"), "NEW.principal = ''"
    ),
)
_ERASED = Subject("table", "NEW.table_id", "NEW.namespace_id", "NEW.path")
_ERASURE = {"erasure": "NEW.id", "requested_by": "NEW.requested_by"}
ERASURES = (
    Trigger("erasure_requested", INSERT, "erasures", "'erasure.requested'", _ERASED, _ERASURE),
    Trigger(
        "erasure_ended",
        UPDATE,
        "erasures",
        "'erasure.ended'",
        _ERASED,
        {**_ERASURE, "outcome": "NEW.outcome"},
        "OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL",
    ),
)
# The namespace of a mount is marked as such, unlike all others of which there are events.
_MOUNTED = Subject(
    "namespace",
    "namespaces.id",
    "namespaces.id",
    namespace_path("namespaces.id"),
    "FROM namespaces WHERE namespaces.id = NEW.namespace_id",
)
_MOUNT_COLUMNS = ("updated_at", "kind", "settings", "allowed_locations", "max_age_ms", "managed", "vends_credentials")
MOUNTS = (
    Trigger("mount_created", INSERT, "mounts", "'mount.created'", _MOUNTED, {"mount_kind": "NEW.kind"}),
    Trigger(
        "mount_altered",
        UPDATE,
        "mounts",
        "'mount.altered'",
        _MOUNTED,
        {"mount_kind": "NEW.kind"},
        " OR ".join(f"NEW.{column} <> OLD.{column}" for column in _MOUNT_COLUMNS),
    ),
    Trigger(
        "mount_dropped", DROP, "namespaces", "'mount.dropped'", namespace_of_row("OLD"), when="OLD.mount_id = OLD.id"
    ),
    Trigger(
        "table_given_to_mount",
        UPDATE,
        "tables",
        "'table.moved'",
        Subject("table", "OLD.id", "OLD.namespace_id", table_path("OLD")),
        when="OLD.mount_id IS NULL AND NEW.mount_id IS NOT NULL",
    ),
)
_PUBLICATION = {"publication": "NEW.name", "catalog_kind": "NEW.kind"}
PUBLICATIONS = (
    Trigger("publication_created", INSERT, "publications", "'publication.created'", SERVER, _PUBLICATION),
    Trigger(
        "publication_removing",
        UPDATE,
        "publications",
        "'publication.dropped'",
        SERVER,
        _PUBLICATION,
        "NEW.removing AND NOT OLD.removing",
    ),
    Trigger(
        "publication_dropped",
        DELETE,
        "publications",
        "'publication.dropped'",
        SERVER,
        {"publication": "OLD.name", "catalog_kind": "OLD.kind"},
        "NOT OLD.removing",
    ),
)
SNAPSHOTS = (
    Trigger(
        "snapshot_completed",
        UPDATE,
        "snapshots",
        "CASE NEW.complete WHEN 1 THEN 'snapshot.created' ELSE 'snapshot.dropped' END",
        SERVER,
        {"snapshot": "NEW.name", "created_by": "NEW.created_by"},
        "NEW.complete <> OLD.complete",
    ),
)
_OF_FUNCTION = "FROM functions JOIN namespaces ON namespaces.id = functions.namespace_id WHERE functions.object_id = "


def _namespace_of_function(row: str) -> Subject:
    path = namespace_path("namespaces.id")
    return Subject("namespace", "namespaces.id", "namespaces.id", path, f"{_OF_FUNCTION}{row}.object_id")


_FUNCTION = {"function": "functions.name", "version": "NEW.version", "changed_by": "NEW.created_by"}
FUNCTIONS = (
    Trigger(
        "function_created", INSERT, "function_versions", "'function.created'", _namespace_of_function("NEW"), _FUNCTION
    ),
    Trigger(
        "function_altered", UPDATE, "function_versions", "'function.altered'", _namespace_of_function("NEW"), _FUNCTION
    ),
    # With its function, a version has no event of its own.
    Trigger(
        "function_version_dropped",
        DELETE,
        "function_versions",
        "'function.version.dropped'",
        _namespace_of_function("OLD"),
        {"function": "functions.name", "version": "OLD.version"},
    ),
    Trigger(
        "function_dropped",
        DELETE,
        "functions",
        "'function.dropped'",
        namespace_of_id("OLD.namespace_id"),
        {"function": "OLD.name"},
    ),
)
SECRETS = tuple(
    Trigger(
        f"secret_{what}",
        change,
        "named_secrets",
        f"'secret.{what}'",
        namespace_of_id(f"{row}.namespace_id"),
        {"secret": f"{row}.name"},
        when,
    )
    for what, change, row, when in (
        ("created", INSERT, "NEW", "TRUE"),
        # Another key of the server encrypts the same value anew: that is no change.
        ("altered", UPDATE, "NEW", "NEW.updated_at <> OLD.updated_at OR NEW.key_id = OLD.key_id"),
        ("dropped", DELETE, "OLD", "TRUE"),
    )
)


def _schedule(row: str) -> dict[str, str]:
    return {"schedule": f"json({named_path(f'{row}.namespace_id', f'{row}.name')})"}


SCHEDULES = (
    Trigger("schedule_created", INSERT, "schedules", "'schedule.created'", _schedule_of("NEW"), _schedule("NEW")),
    Trigger(
        "schedule_altered",
        UPDATE,
        "schedules",
        "CASE WHEN NEW.paused = OLD.paused THEN 'schedule.altered'"
        " ELSE CASE WHEN NEW.paused THEN 'schedule.paused' ELSE 'schedule.resumed' END END",
        _schedule_of("NEW"),
        _schedule("NEW"),
        "NEW.paused <> OLD.paused OR NEW.definition <> OLD.definition OR NEW.debounce_ms <> OLD.debounce_ms",
    ),
    Trigger("schedule_dropped", DELETE, "schedules", "'schedule.dropped'", _schedule_of("OLD"), _schedule("OLD")),
)
_MAX_AGE = {"max_age_millis": "NEW.max_age_ms"}
TABLE_STATE = (
    Trigger("max_age_set", INSERT, "max_ages", "'table.max_age.set'", table_of_id("NEW.table_id"), _MAX_AGE),
    Trigger(
        "max_age_changed",
        UPDATE,
        "max_ages",
        "'table.max_age.set'",
        table_of_id("NEW.table_id"),
        _MAX_AGE,
        "NEW.max_age_ms <> OLD.max_age_ms",
    ),
    Trigger("max_age_dropped", DELETE, "max_ages", "'table.max_age.dropped'", table_of_id("OLD.table_id")),
    Trigger(
        "table_age_passed",
        UPDATE,
        "max_ages",
        "CASE WHEN NEW.stale_since IS NULL THEN 'table.fresh' ELSE 'table.stale' END",
        table_of_id("NEW.table_id"),
        _MAX_AGE,
        "(NEW.stale_since IS NULL) <> (OLD.stale_since IS NULL)",
    ),
    Trigger(
        "table_tested",
        INSERT,
        "table_tests",
        "'table.tested'",
        table_of_id("NEW.table_id"),
        {"version": "NEW.version", "branch": "NULLIF(NEW.branch, '')", "passed": truth("NEW.passed")},
    ),
    Trigger(
        "versions_deleted",
        INSERT,
        "deleted_versions",
        "'table.versions.deleted'",
        table_of_id("NEW.table_id"),
        {"first": "NEW.first", "beyond": "NEW.beyond", "branch": "NULLIF(NEW.branch, '')"},
    ),
)
GOVERNANCE = (
    *CLASSIFICATIONS,
    *PROTECTIONS,
    *QUOTAS,
    *ERASURES,
    *MOUNTS,
    *PUBLICATIONS,
    *SNAPSHOTS,
    *FUNCTIONS,
    *SECRETS,
    *SCHEDULES,
    *TABLE_STATE,
)
