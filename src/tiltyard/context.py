"""What every operation is given: the catalog, the storage, the settings, and who asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiltyard.config import Settings
    from tiltyard.paging import Paging
    from tiltyard.storage import Storage
    from tiltyard.store import Store


@dataclass(frozen=True, slots=True)
class Services:
    """What lives as long as the process."""

    settings: Settings
    store: Store
    storage: Storage
    paging: Paging
    clock: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Context:
    """One request: the services, and what came with it.

    `entries` are the context entries of the specification; `clock` counts milliseconds since 1970.
    """

    services: Services
    request_id: str = ""
    entries: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @property
    def store(self) -> Store:
        return self.services.store

    @property
    def storage(self) -> Storage:
        return self.services.storage

    @property
    def paging(self) -> Paging:
        return self.services.paging

    @property
    def clock(self) -> Callable[[], int]:
        return self.services.clock
