"""The store: the catalog's database, in SQLite or PostgreSQL. Synchronous; knows nothing of HTTP or Lance.

`Store` (store.py) has the methods of all entities; each entity is a file with its records, its SQL and its methods:

- `namespaces`; `mounts` and what is kept of what lies below them; `tables/`: tables and views, versions (commit
  records), deleted versions, appends queued for one commit, multipart uploads, the trash, folders scheduled for
  deletion, overlap of locations, ages (how old tables may be), erasures, upkeep (which tables got commits, and
  what gc and repair ask)
- `mounts/mirrors` (publications, on the wire): other catalogs in which tables are registered, with their entries there
- `jobs/`: transactions (long-running operations), jobs (those that drivers run), events (what happened to them),
  schedules (when jobs are queued by themselves);
  `idempotency` (requests with a key)
- `processes`: servers and workers that are alive
- `access/`: principals and API keys, signing keys, roles, grants, policies, classifications, what is visible by grants,
  generations
- `functions` of clients, their `secrets`, and the rows that they failed on (`function_errors`)
- `audit`; `events/`: what has changed, written by triggers, and the sinks that get it
- `dump`: the whole catalog to a file, and back

They derive from `Repository` (repository.py), run on a `Database` (backend.py) that `sqlite/` and `postgres` implement,
and share `records` and `paths`. `schema` applies `migrations/`.
"""

from tiltyard.runtime.process import wall_clock
from tiltyard.store.access.classifications import ClassificationRecord, ClassifiedColumn
from tiltyard.store.access.grants import Creator, GrantRecord
from tiltyard.store.access.policies import PolicyRecord
from tiltyard.store.access.principals import KeyRecord, PrincipalRecord
from tiltyard.store.access.quotas import Quota, QuotaUse
from tiltyard.store.access.signing_keys import SigningKey
from tiltyard.store.approvals import Approval
from tiltyard.store.audit import AuditFilter, AuditRecord
from tiltyard.store.dump import DumpHeader, NotEmptyError, read_header, read_rows
from tiltyard.store.functions.definitions import FunctionRecord, FunctionUse, NewFunction
from tiltyard.store.functions.errors import FragmentErrors
from tiltyard.store.functions.secrets import SecretRecord
from tiltyard.store.idempotency import NewRequest, RequestClaim, RequestLeaseLostError, RequestRecord
from tiltyard.store.jobs.jobs import JobFilter
from tiltyard.store.jobs.schedules import ScheduleRecord
from tiltyard.store.jobs.transactions import RunKeyTakenError
from tiltyard.store.mounts.mirrors import MirrorRecord, PublishedEntry, SyncOutcome, TableProblem
from tiltyard.store.mounts.mounts import LocationDroppedError, LocationTakenError, MountRecord
from tiltyard.store.processes import ProcessRecord
from tiltyard.store.protections import Protection
from tiltyard.store.records import (
    DroppedNamespace,
    NamespaceRecord,
    NewVersion,
    RemovedNamespace,
    RemovedTable,
    TransactionRecord,
    VersionRecord,
)
from tiltyard.store.repository import (
    FRESH_SECONDS,
    GRANTS_GENERATION,
    IDENTITY_GENERATION,
    MOUNTS_GENERATION,
    PROTECTIONS_GENERATION,
    Path,
    Properties,
)
from tiltyard.store.schema import StoreNewerError, StoreVersionError
from tiltyard.store.store import Store, UnitOfWork, database_exists, is_empty_database, load_dump, open_store, upgrade
from tiltyard.store.tables.ages import TableAge
from tiltyard.store.tables.contracts import CheckedVersion, TestRecord
from tiltyard.store.tables.erasures import Erasure
from tiltyard.store.tables.folder_deletions import CREATING, DROPPED, RESERVED, ScheduledDeletion
from tiltyard.store.tables.location_overlap import DROP_MOUNTED_TABLE
from tiltyard.store.tables.lookup import ListedTable, TableRecord
from tiltyard.store.tables.queued_appends import RETURNED, AppendNotWaitingError, QueuedAppend
from tiltyard.store.tables.upkeep import TableUpkeep
from tiltyard.store.tables.uploads import UploadPart, UploadRecord
from tiltyard.store.tables.versions import FinalManifest
from tiltyard.store.tables.views import ViewRecord

__all__ = [
    "CREATING",
    "DROPPED",
    "DROP_MOUNTED_TABLE",
    "FRESH_SECONDS",
    "GRANTS_GENERATION",
    "IDENTITY_GENERATION",
    "MOUNTS_GENERATION",
    "PROTECTIONS_GENERATION",
    "RESERVED",
    "RETURNED",
    "AppendNotWaitingError",
    "Approval",
    "AuditFilter",
    "AuditRecord",
    "CheckedVersion",
    "ClassificationRecord",
    "ClassifiedColumn",
    "Creator",
    "DroppedNamespace",
    "DumpHeader",
    "Erasure",
    "FinalManifest",
    "FragmentErrors",
    "FunctionRecord",
    "FunctionUse",
    "GrantRecord",
    "JobFilter",
    "KeyRecord",
    "ListedTable",
    "LocationDroppedError",
    "LocationTakenError",
    "MirrorRecord",
    "MountRecord",
    "NamespaceRecord",
    "NewFunction",
    "NewRequest",
    "NewVersion",
    "NotEmptyError",
    "Path",
    "PolicyRecord",
    "PrincipalRecord",
    "ProcessRecord",
    "Properties",
    "Protection",
    "PublishedEntry",
    "QueuedAppend",
    "Quota",
    "QuotaUse",
    "RemovedNamespace",
    "RemovedTable",
    "RequestClaim",
    "RequestLeaseLostError",
    "RequestRecord",
    "RunKeyTakenError",
    "ScheduleRecord",
    "ScheduledDeletion",
    "SecretRecord",
    "SigningKey",
    "Store",
    "StoreNewerError",
    "StoreVersionError",
    "SyncOutcome",
    "TableAge",
    "TableProblem",
    "TableRecord",
    "TableUpkeep",
    "TestRecord",
    "TransactionRecord",
    "UnitOfWork",
    "UploadPart",
    "UploadRecord",
    "VersionRecord",
    "ViewRecord",
    "database_exists",
    "is_empty_database",
    "load_dump",
    "open_store",
    "read_header",
    "read_rows",
    "upgrade",
    "wall_clock",
]
