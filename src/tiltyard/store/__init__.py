"""The catalog's database: namespaces, tables, transactions, versions. Synchronous; knows nothing of HTTP or Lance."""

from tiltyard.runtime.clocks import wall_clock
from tiltyard.store.access.grants import Creator, GrantRecord
from tiltyard.store.access.identity_records import KeyRecord, PrincipalRecord, SigningKey
from tiltyard.store.access.principals import IDENTITY_GENERATION
from tiltyard.store.access.roles import GRANTS_GENERATION
from tiltyard.store.audit import AuditFilter, AuditRecord
from tiltyard.store.records import (
    DroppedNamespace,
    ListedTable,
    NamespaceRecord,
    NewRequest,
    NewVersion,
    Path,
    Properties,
    RemovedNamespace,
    RemovedTable,
    RequestClaim,
    RequestRecord,
    ScheduledDeletion,
    TableRecord,
    TransactionRecord,
    UploadPart,
    UploadRecord,
    VersionRecord,
)
from tiltyard.store.schema import StoreVersionError
from tiltyard.store.store import Store, UnitOfWork, database_exists, open_store, upgrade
from tiltyard.store.tables.deleted_folders import CREATING, DROPPED, RESERVED
from tiltyard.store.tables.versions import FinalManifest

__all__ = [
    "CREATING",
    "DROPPED",
    "GRANTS_GENERATION",
    "IDENTITY_GENERATION",
    "RESERVED",
    "AuditFilter",
    "AuditRecord",
    "Creator",
    "DroppedNamespace",
    "FinalManifest",
    "GrantRecord",
    "KeyRecord",
    "ListedTable",
    "NamespaceRecord",
    "NewRequest",
    "NewVersion",
    "Path",
    "PrincipalRecord",
    "Properties",
    "RemovedNamespace",
    "RemovedTable",
    "RequestClaim",
    "RequestRecord",
    "ScheduledDeletion",
    "SigningKey",
    "Store",
    "StoreVersionError",
    "TableRecord",
    "TransactionRecord",
    "UnitOfWork",
    "UploadPart",
    "UploadRecord",
    "VersionRecord",
    "database_exists",
    "open_store",
    "upgrade",
    "wall_clock",
]
