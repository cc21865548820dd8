"""Store Lance tables on local disks and object stores: locations, files, open datasets, writes and manifests."""

from tiltyard.storage.roots import StorageError
from tiltyard.storage.storage import Storage

__all__ = ["Storage", "StorageError"]
