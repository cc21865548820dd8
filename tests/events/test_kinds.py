"""Every operation that changes something has events, or a reason why it has none; so has every table of the catalog.

An operation that is new here needs an entry: the types of its events, as docs/events.md lists them, or the reason.
"""

from __future__ import annotations

import re
from pathlib import Path

from tiltyard.bootstrap import register_operations
from tiltyard.console.monitor.events import KINDS as CONSOLE_KINDS
from tiltyard.model.operations import bound_operations
from tiltyard.store import open_store
from tiltyard.store.events.triggers import TRIGGERS
from tiltyard.store.store import open_database

PAGE = (Path(__file__).parents[2] / "docs/events.md").read_text()
VERSION, JOB, ALTERED, GRANT = "table.version.created", "job.queued", "table.altered", "grant.changed"
IN_FILES = "tags and branches are files of the table, which clients write without the catalog, too"
OF_A_JOB = "bookkeeping of a job that runs, many times a minute: the job has events"
UPLOAD = "parts of an upload are no rows yet: its completion is a version"
OF_EVENTS, OF_SERVERS = "of the events themselves", "keys of the servers themselves"
KINDS: dict[str, tuple[str, ...] | str] = {
    "AbortMultipartWrite": UPLOAD,
    "AddAcl": (GRANT,),
    "AddRoleBinding": (GRANT,),
    "AddRoleMember": ("role.member.added",),
    "AlterMount": ("mount.altered",),
    "AlterPrincipal": ("principal.created", "principal.altered"),
    "AlterSchedule": ("schedule.altered", "schedule.paused", "schedule.resumed"),
    "AlterSecret": ("secret.altered",),
    "AlterTableAddColumns": (VERSION,),
    "AlterTableAlterColumns": (VERSION,),
    "AlterTableBackfillColumns": (JOB,),
    "AlterTableDropColumns": (VERSION,),
    "AlterTransaction": ("job.canceled", "job.succeeded"),
    "BatchCommitTables": (VERSION, "table.created"),
    "BatchCreateTableVersions": (VERSION,),
    "BatchDeleteTableVersions": ("table.versions.deleted",),
    "BeatJob": OF_A_JOB,
    "CancelJob": ("job.canceled",),
    "CheckMount": "it asks another catalog, and notes whether that answers",
    "CherryPickTableBranch": (VERSION,),
    "ClaimJob": ("job.started",),
    "CloneTable": ("table.created",),
    "CollectGarbage": (JOB,),
    "CollectTableGarbage": (JOB,),
    "CompleteMultipartWrite": (VERSION,),
    "CreateApiKey": ("key.created",),
    "CreateEmptyTable": ("table.created",),
    "CreateFunction": ("function.created", "function.altered"),
    "CreateMaterializedView": ("table.created", "view.defined"),
    "CreateMultipartWrite": UPLOAD,
    "CreateNamespace": ("namespace.created",),
    "CreatePublication": ("publication.created",),
    "CreateRole": ("role.created",),
    "CreateSchedule": ("schedule.created",),
    "CreateSecret": ("secret.created",),
    "CreateSnapshot": ("snapshot.created",),
    "CreateTable": ("table.created", VERSION),
    "CreateTableBranch": IN_FILES,
    "CreateTableIndex": (JOB, VERSION),
    "CreateTableScalarIndex": (JOB, VERSION),
    "CreateTableTag": IN_FILES,
    "CreateTableVersion": (VERSION,),
    "CreateView": ("table.created",),
    "DecideApproval": ("approval.approved", "approval.denied"),
    "DeclareTable": ("table.created",),
    "DeleteAcl": ("grant.changed", "grant.revoked"),
    "DeleteFromTable": (VERSION,),
    "DeleteRoleBinding": ("grant.changed", "grant.revoked"),
    "DeleteTableBranch": IN_FILES,
    "DeleteTableTag": IN_FILES,
    "DeregisterTable": ("table.deregistered",),
    "DisableTableRte": (ALTERED,),
    "DropClassificationPolicy": ("classification.policy.dropped",),
    "DropFunction": ("function.dropped", "function.version.dropped"),
    "DropMaterializedView": ("table.dropped",),
    "DropNamespace": ("namespace.dropped", "table.dropped"),
    "DropPublication": ("publication.dropped",),
    "DropQuota": ("quota.dropped",),
    "DropRole": ("role.dropped",),
    "DropSchedule": ("schedule.dropped",),
    "DropSecret": ("secret.dropped",),
    "DropSnapshot": ("snapshot.dropped",),
    "DropTable": ("table.dropped",),
    "DropTableContract": (ALTERED,),
    "DropTableIndex": (VERSION,),
    "DropTablePolicy": ("policy.dropped",),
    "DropTablePrimaryKey": (ALTERED,),
    "DropView": ("table.dropped",),
    "EnableTableRte": (ALTERED,),
    "EraseFromTable": ("erasure.requested", "erasure.ended", JOB),
    "FinishJob": ("job.succeeded", "job.failed"),
    "GrantPrivileges": (GRANT,),
    "InsertIntoTable": (VERSION,),
    "KeepJobPart": OF_A_JOB,
    "LiftProtection": ("protection.lifted",),
    "MergeInsertIntoTable": (VERSION,),
    "MountCatalog": ("mount.created",),
    "MoveTable": ("table.moved", "table.renamed"),
    "PauseJob": ("job.paused",),
    "ReadJobFunction": "it reads secrets, which the audit records; it changes nothing",
    "RecordFunctionErrors": OF_A_JOB,
    "RecordTableLineage": ("table.lineage.recorded",),
    "RefreshMaterializedView": (JOB,),
    "RegisterTable": ("table.created",),
    "RemoveRoleMember": ("role.member.removed",),
    "RenameTable": ("table.renamed",),
    "ReplayEvents": OF_EVENTS,
    "ResendDeadLetters": OF_EVENTS,
    "RepairTable": "it finalizes what was committed, and has had its event",
    "RestoreTable": (VERSION,),
    "ResumeJob": ("job.resumed",),
    "RevokeApiKey": ("key.revoked",),
    "RevokePrivileges": ("grant.changed", "grant.revoked"),
    "RotateApiKey": ("key.created", "key.altered"),
    "RunSchedule": (JOB,),
    "SetClassification": ("classification.set",),
    "SetClassificationPolicy": ("classification.policy.set",),
    "SetProtection": ("protection.set",),
    "SetQuota": ("quota.set",),
    "SetTableContract": (ALTERED,),
    "SetTableMaxAge": ("table.max_age.set", "table.max_age.dropped"),
    "SetTablePolicy": ("policy.set",),
    "SetTablePrimaryKey": (ALTERED,),
    "SubmitJob": (JOB,),
    "SyncPublication": "what it writes lies in another catalog",
    "TestTable": ("table.tested",),
    "UndropNamespace": ("namespace.undropped",),
    "UndropTable": ("table.undropped",),
    "UnmountCatalog": ("mount.dropped",),
    "UnsetClassification": ("classification.unset",),
    "UpdateFieldMetadata": (VERSION,),
    "UpdateTable": (VERSION,),
    "UpdateTableSchemaMetadata": (VERSION,),
    "UpdateTableTag": IN_FILES,
}
WORK, INDEX, PART = "leases and work under way", "found again from what has events", "a part of what has events"
TABLES_WITHOUT = {
    "append_turns": WORK,
    "classified_columns": "which column it is by now: its classifications have events",
    "clone_sources": PART,
    "column_refreshes": "who declared a column: that is a version of the table",
    "doomed_folders": WORK,
    "event_dead_letters": OF_EVENTS,
    "event_sinks": OF_EVENTS,
    "event_streams": OF_EVENTS,
    "events": OF_EVENTS,
    "function_errors": PART,
    "function_uses": INDEX,
    "generations": INDEX,
    "granted_namespaces": INDEX,
    "job_events": PART,
    "job_parts": PART,
    "lineage_sources": PART,
    "processes": WORK,
    "publication_problems": PART,
    "published_entries": PART,
    "queued_appends": WORK,
    "removed_namespaces": PART,
    "removed_tables": PART,
    "removed_versions": PART,
    "requests": WORK,
    "schedule_sources": PART,
    "schema_migrations": "of an upgrade, which is no change of what the catalog says",
    "secrets": OF_SERVERS,
    "signing_keys": OF_SERVERS,
    "snapshot_tables": PART,
    "table_usage": "what was used, some seconds later: its commits have events",
    "upkeep": INDEX,
    "upload_parts": WORK,
    "uploads": WORK,
    "usage_counts": "what was used, by the second: quotas have events",
}


def types_of_triggers() -> set[str]:
    """Return the types that the triggers write; a job's are named by its status."""
    found = {name for trigger in TRIGGERS for name in re.findall(r"'([a-z_]+(?:\.[a-z_]+)+)'", trigger.type)}
    return found | {f"job.{status}" for status in ("succeeded", "failed", "canceled", "lost")}


def test_every_operation_that_changes_something_has_events_or_a_reason() -> None:
    register_operations()
    changing = {name for name, (_, handler) in bound_operations().items() if handler and handler.changes}
    assert changing - {*KINDS} == set(), "say which events these have, or why none"
    assert {*KINDS} - changing == set(), "these change nothing, or are no operations any more"
    named = {name for kinds in KINDS.values() if not isinstance(kinds, str) for name in kinds}
    assert named - types_of_triggers() == set(), "no trigger writes these"


def test_kinds_that_the_console_offers_are_beginnings_of_all_types() -> None:
    types = types_of_triggers()
    offered = [kind for kind in CONSOLE_KINDS if kind != "audit"]
    assert all(any(name.startswith(f"{kind}.") for name in types) for kind in offered)
    assert {name.partition(".")[0] for name in types} <= {*CONSOLE_KINDS}


def test_page_lists_the_types_that_there_are() -> None:
    table = PAGE.split("## What there is")[1].split("## Webhooks")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", row)}
    assert listed == types_of_triggers() | {"events.lost"}


def test_every_table_of_the_catalog_has_triggers_or_a_reason(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    open_store(url).close()
    database = open_database(url)
    rows = database.read(lambda connection: connection.rows("SELECT name FROM sqlite_master WHERE type = 'table'"))
    database.close()
    tables = {name for (name,) in rows if not name.startswith("sqlite_")}
    recorded = {trigger.table for trigger in TRIGGERS}
    assert recorded <= tables
    assert tables - recorded == {*TABLES_WITHOUT}, "say why its changes have no events"
