"""The catalog's database: namespaces, tables, transactions, versions. Synchronous; knows nothing of HTTP or Lance."""

from tiltyard.store.folders import CREATING, DROPPED
from tiltyard.store.records import (
    DoomedFolder,
    DroppedNamespace,
    ListedTable,
    NamespaceRecord,
    NewVersion,
    Path,
    Properties,
    TableRecord,
    TransactionRecord,
    UploadPart,
    UploadRecord,
    VersionRecord,
)
from tiltyard.store.schema import StoreVersionError
from tiltyard.store.store import Store, UnitOfWork, open_store, upgrade, wall_clock

__all__ = [
    "CREATING",
    "DROPPED",
    "DoomedFolder",
    "DroppedNamespace",
    "ListedTable",
    "NamespaceRecord",
    "NewVersion",
    "Path",
    "Properties",
    "Store",
    "StoreVersionError",
    "TableRecord",
    "TransactionRecord",
    "UnitOfWork",
    "UploadPart",
    "UploadRecord",
    "VersionRecord",
    "open_store",
    "upgrade",
    "wall_clock",
]
