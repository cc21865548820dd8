"""The catalog's database: namespaces, tables, transactions, versions. Synchronous; knows nothing of HTTP or Lance."""

from tiltyard.runtime.clocks import wall_clock
from tiltyard.store.access.grants import GrantRecord, Owner
from tiltyard.store.access.identity_records import KeyRecord, PrincipalRecord, SigningKey
from tiltyard.store.access.principals import IDENTITY
from tiltyard.store.access.roles import GRANTS
from tiltyard.store.audit import AuditFilter, AuditRecord
from tiltyard.store.records import (
    Claim,
    DoomedFolder,
    DroppedNamespace,
    ListedTable,
    NamespaceRecord,
    NewRequest,
    NewVersion,
    Path,
    Properties,
    RemovedNamespace,
    RemovedTable,
    RequestRecord,
    TableRecord,
    TransactionRecord,
    UploadPart,
    UploadRecord,
    VersionRecord,
)
from tiltyard.store.schema import StoreVersionError
from tiltyard.store.store import Store, UnitOfWork, is_there, open_store, upgrade
from tiltyard.store.tables.deleted_folders import CREATING, DROPPED, RESERVED
from tiltyard.store.tables.versions import FinalManifest

__all__ = [
    "CREATING",
    "DROPPED",
    "GRANTS",
    "IDENTITY",
    "RESERVED",
    "AuditFilter",
    "AuditRecord",
    "Claim",
    "DoomedFolder",
    "DroppedNamespace",
    "FinalManifest",
    "GrantRecord",
    "KeyRecord",
    "ListedTable",
    "NamespaceRecord",
    "NewRequest",
    "NewVersion",
    "Owner",
    "Path",
    "PrincipalRecord",
    "Properties",
    "RemovedNamespace",
    "RemovedTable",
    "RequestRecord",
    "SigningKey",
    "Store",
    "StoreVersionError",
    "TableRecord",
    "TransactionRecord",
    "UnitOfWork",
    "UploadPart",
    "UploadRecord",
    "VersionRecord",
    "is_there",
    "open_store",
    "upgrade",
    "wall_clock",
]
