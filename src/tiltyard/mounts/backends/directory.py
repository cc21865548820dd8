"""A folder of Lance tables, local or on an object store, as Lance's own directory namespace keeps it.

Everything goes through that namespace (`lance_namespace.connect("dir")`), which other clients of the folder use at the
same time: it knows the primary key of its manifest, its markers, and its compatibility with folders from before there
was a manifest. Here are the things that it does not check, or says otherwise:

- It accepts a table in a namespace that does not exist, lists that namespace as empty, and takes `a$b` for `a`, `b`.
- In the mode "both", a table at the root is what lies in `NAME.lance`: it has no properties, no other location, and
  comes back after it was deregistered, unless the marker of the mode "listing" says so.
- It percent-encodes names twice: a name with such characters gets two folders.
- It writes names into the text of the expressions by which it reads its manifest: no name with a quote reaches it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import lance_namespace
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeNamespaceRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    LanceNamespace,
    ListNamespacesRequest,
    ListTablesRequest,
    RegisterTableRequest,
)
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.ids import DEFAULT_DELIMITER, Id
from tiltyard.mounts.call_deadline import CallDeadline
from tiltyard.mounts.lance_entries import normalized_location
from tiltyard.mounts.mount_settings import SECRET, check_seconds
from tiltyard.mounts.mounted_catalog import MountedTable, NamePage, Properties, StorageCredentials, check_limit
from tiltyard.storage.errors import THROTTLED, StorageThrottledError, is_throttled
from tiltyard.storage.locations import TABLE_SUFFIX, canonical_location, is_below, is_local

T = TypeVar("T")

_NEW_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
"""Names that have one spelling in folders, in URIs, and in the manifest."""
_IMPOSSIBLE = re.compile(r"""[$/\\'"\x00-\x1f\x7f]|^\.{0,2}$""")
"""In names that are not there, whatever the folder has: an expression of Lance's, or another folder, would be meant."""
_THREADS = 8
"""Calls at once, for a folder on an object store."""

_ERRORS: tuple[tuple[re.Pattern[str], type[LanceNamespaceError], str], ...] = (
    (
        re.compile(r"AccessDenied|Forbidden|\b40[13]\b|Permission denied"),
        PermissionDeniedError,
        "refuses access: check the mount's credentials",
    ),
    (
        re.compile(r"[Cc]onflict|[Cc]oncurrent|Incompatible transaction"),
        ConcurrentModificationError,
        "was changed by others at the same time: try again",
    ),
    (
        re.compile(r"\bIO\b|Generic \w+ error|sending request|Not found|NoSuchBucket|object store"),
        ServiceUnavailableError,
        "does not answer: try again in a moment",
    ),
)
_LOST_RACE = re.compile(r"concurrently created")
_SOURCE_LINE = re.compile(r",? /\S+\.rs:\d+:\d+")


@dataclass(frozen=True)
class DirectorySettings:
    """Where the folder is, and how to reach it.

    `options` and `credentials` are storage options in Lance's words, the latter by reference; `timeout` is in seconds,
    for a whole call, on object stores alone.
    """

    root: str
    mode: Literal["both", "manifest", "listing"] = "both"
    options: dict[str, str] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict, repr=False, metadata=SECRET)
    timeout: float = 15.0

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        check_seconds(timeout=self.timeout)
        canonical_location(self.root)


class DirectoryCatalog:
    """The namespaces and tables of one folder."""

    settings_type = DirectorySettings
    kind = "dir"

    def __init__(self, settings: DirectorySettings) -> None:
        """Parse; the folder is first read by a call."""
        self._settings = settings
        self._root = canonical_location(settings.root)
        self._is_local = is_local(self._root)
        self._deadline = None if self._is_local else CallDeadline(self._name, settings.timeout, _THREADS)
        self._clients: dict[str, LanceNamespace] = {}
        self._lock = threading.Lock()

    @property
    def _name(self) -> str:
        return f"The directory {self._root}"

    @property
    def levels(self) -> int | None:
        return 0 if self._settings.mode == "listing" else None

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        check_limit(limit)
        self._check_namespace(parent)
        response = self._call("list_namespaces", ListNamespacesRequest(id=list(parent), limit=limit, page_token=token))
        return NamePage(_possible(response.namespaces), response.page_token)

    def get_namespace(self, namespace: Id) -> Properties:
        if not self._can_exist(namespace):
            raise NamespaceNotFoundError(f"No namespace '{namespace}' here.")
        if not namespace:
            self._check_root()
            return {}
        return dict(self._call("describe_namespace", DescribeNamespaceRequest(id=list(namespace))).properties or {})

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        if not namespace:
            raise NamespaceAlreadyExistsError("The root namespace always exists.")
        if self._settings.mode == "listing":
            self._refuse("hold namespaces, in the mode it is mounted in")
        self._check_new_name(namespace)
        self._call("create_namespace", CreateNamespaceRequest(id=list(namespace), properties=dict(properties)))

    def drop_namespace(self, namespace: Id) -> None:
        if not namespace:
            raise InvalidInputError("The root namespace cannot be dropped: unmount the directory.")
        self._check_namespace(namespace)
        self._call("drop_namespace", DropNamespaceRequest(id=list(namespace)))

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        check_limit(limit)
        self._check_root()
        if not self._can_exist(namespace):
            raise NamespaceNotFoundError(f"No namespace '{namespace}' here.")
        response = self._call("list_tables", ListTablesRequest(id=list(namespace), limit=limit, page_token=token))
        if not response.tables:
            self._check_namespace(namespace)
        return NamePage(_possible(response.tables), response.page_token)

    def get_table(self, table: Id) -> MountedTable:
        self._check_root()
        if not table or not self._can_exist(table.parent):
            raise NamespaceNotFoundError(f"No namespace '{table.parent}' here.")
        if _IMPOSSIBLE.search(table.name):
            raise TableNotFoundError(f"No table '{table}' here.")
        try:
            response = self._call("describe_table", DescribeTableRequest(id=list(table), check_declared=True))
        except TableNotFoundError:
            self._check_namespace(table.parent)
            raise TableNotFoundError(f"No table '{table}' here.") from None
        return MountedTable(
            table,
            normalized_location(response.location, is_encoded=True),
            dict(response.properties or {}),
            is_declared=bool(response.is_only_declared),
        )

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        if not table:
            raise InvalidInputError("A table's id has at least one name.")
        self._check_new_name(table)
        self._check_namespace(table.parent)
        is_listed = len(table) == 1 and self._settings.mode != "manifest"
        if is_listed and properties:
            self._refuse("keep properties of a table at its root, in the mode it is mounted in")
        if location is not None and canonical_location(location) != self._listed_location(table, is_listed=is_listed):
            return self._register(table, canonical_location(location), properties, is_listed=is_listed)
        self._call("declare_table", DeclareTableRequest(id=list(table), properties=dict(properties) or None))
        return self.get_table(table)

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        self._refuse("change the properties of a table")

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        self._refuse("rename a table")

    def deregister_table(self, table: Id) -> MountedTable:
        found = self.get_table(table)
        request = DeregisterTableRequest(id=list(table))
        if len(table) == 1 and self._settings.mode == "both":
            self._call("deregister_table", request, mode="listing")
            with suppress(TableNotFoundError):  # there is a row, if a client of this mode has declared the table
                self._call("deregister_table", request)
        else:
            self._call("deregister_table", request)
        return found

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return None: what clients get for this folder is the business of the storage it lies in."""
        self.get_table(table)
        return None

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.close()

    def _register(self, table: Id, location: str, properties: Properties, *, is_listed: bool) -> MountedTable:
        """Add a table that lies anywhere below the root."""
        if is_listed:
            raise InvalidInputError(
                f"A table at the root of a directory lies in its folder {table.name}{TABLE_SUFFIX}: leave the location "
                "out, or declare the table in a namespace."
            )
        if not is_below(location, self._root):
            raise InvalidInputError(f"The location is not below the directory's root {self._root}.")
        if properties:
            self._refuse("keep properties of a table at a location of its own")
        relative = location[len(self._root.rstrip("/")) + 1 :]
        self._call("register_table", RegisterTableRequest(id=list(table), location=relative))
        return self.get_table(table)

    def _listed_location(self, table: Id, *, is_listed: bool) -> str | None:
        """Return where a table at the root lies, if it is found by listing."""
        return f"{self._root.rstrip('/')}/{table.name}{TABLE_SUFFIX}" if is_listed else None

    def _can_exist(self, namespace: Id) -> bool:
        has_levels = not namespace or self._settings.mode != "listing"
        return has_levels and not any(_IMPOSSIBLE.search(name) for name in namespace)

    def _check_namespace(self, namespace: Id) -> None:
        self.get_namespace(namespace)

    def _check_new_name(self, path: Id) -> None:
        if self._settings.mode == "listing" and len(path) > 1:
            self._refuse("hold namespaces, in the mode it is mounted in")
        for name in path:
            if not _NEW_NAME.fullmatch(name):
                raise InvalidInputError(
                    f"A directory cannot hold the name {name!r}: use letters of ASCII, digits, '_', '-', '.', '+'; "
                    f"'{DEFAULT_DELIMITER}' separates names there."
                )

    def _check_root(self) -> None:
        """Raise ServiceUnavailableError where a local folder is not there: a missing disk is no empty catalog."""
        if self._is_local and not Path(self._root).is_dir():
            raise ServiceUnavailableError(f"{self._name} is not there: mount its disk, or make the folder.")

    def _refuse(self, operation: str) -> NoReturn:
        raise UnsupportedOperationError(f"{self._name} cannot {operation}: Lance's directory namespace has no way to.")

    def _call(self, operation: str, request: Any, mode: str | None = None) -> Any:
        """Call Lance's namespace; on an object store within the mount's time. No impossible name reaches it."""
        self._check_root()
        if any(map(_IMPOSSIBLE.search, request.id)):
            raise NamespaceNotFoundError(f"No namespace or table '{Id(request.id)}' here.")

        def call() -> Any:
            with self._translated():
                method = getattr(self._client(mode or self._settings.mode), operation)
                try:
                    return method(request)
                except ConcurrentModificationError as error:
                    if not _LOST_RACE.search(str(error)):
                        raise
                    return method(request)  # finds what the other one has created

        return call() if self._deadline is None else self._deadline.run(call)

    def _client(self, mode: str) -> LanceNamespace:
        """Return Lance's namespace of a mode; on an object store making it reads the manifest's version."""
        with self._lock:
            client = self._clients.get(mode)
        if client is None:
            client = lance_namespace.connect("dir", self._client_properties(mode))
            with self._lock:
                client = self._clients.setdefault(mode, client)
        return client

    def _client_properties(self, mode: str) -> dict[str, str]:
        seconds = f"{max(1, round(self._settings.timeout / 3))}"
        limits = {
            "timeout": f"{seconds}s",
            "connect_timeout": f"{seconds}s",
            "client_max_retries": "2",
            "client_retry_timeout": seconds,
        }
        options = {**limits, **self._settings.options, **self._settings.credentials}
        return {
            "root": self._root,
            "manifest_enabled": str(mode != "listing").lower(),
            "dir_listing_enabled": str(mode != "manifest").lower(),
            **({} if self._is_local else {f"storage.{key}": value for key, value in options.items()}),
        }

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate what Lance's namespace raises beside the namespace's errors."""
        try:
            yield
        except (InternalError, ValueError, OSError, NotImplementedError) as error:
            text = str(error)
            if is_throttled(text):
                raise StorageThrottledError(THROTTLED) from error
            for pattern, error_type, reason in _ERRORS:
                if pattern.search(text):
                    raise error_type(f"{self._name} {reason}.") from error
            if isinstance(error, InternalError):  # its text has expressions, paths and lines of Lance's source
                raise InternalError(f"{self._name} has failed: the server's log says why.") from error
            raise
        except LanceNamespaceError as error:
            raise type(error)(_SOURCE_LINE.sub("", str(error))) from error


def _possible(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not _IMPOSSIBLE.search(name))
