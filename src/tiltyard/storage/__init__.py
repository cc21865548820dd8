"""Lance tables on disks and object stores: where they lie, how they are opened, written and deleted."""

from tiltyard.storage.roots import StorageError
from tiltyard.storage.storage import Storage

__all__ = ["Storage", "StorageError"]
