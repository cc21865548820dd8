"""A Hive Metastore, 2.3 or 3, by Thrift: its databases are namespaces, its tables with Lance's marker are tables.

Hive 3 has catalogs above its databases: they are a first level, if the mount says so; else it is Hive's own catalog.

Entries are external, and nothing here deletes data: a managed entry would be deleted with its files by Hive or Spark,
and moved with them where it is renamed. `lance-namespace-impls` writes managed ones: they are converted before anything
else is done to them. `spark.sql.sources.provider` lets Spark refuse a table that it cannot read; it would read Lance's
files as text otherwise, and write text beside them.

The metastore keeps no versions of entries: of two changes at the same time the last one stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from thrift.Thrift import TType

from tiltyard.model.ids import Id
from tiltyard.mounts.catalog_errors import (
    FORBIDDEN,
    UNAVAILABLE,
    existing_namespace,
    existing_table,
    impossible_name,
    missing_namespace,
    missing_table,
    non_empty_namespace,
    unsupported,
)
from tiltyard.mounts.database_ids import DatabaseIds
from tiltyard.mounts.lance_entries import (
    MARKER,
    MARKER_KEY,
    MARKER_PROPERTIES,
    check_properties,
    is_lance,
    new_table_location,
    normalized_location,
    other_format_error,
    user_properties,
    with_changes,
)
from tiltyard.mounts.mount_settings import check_network, tls_context
from tiltyard.mounts.mounted_catalog import MountedTable, NamePage, Properties, StorageCredentials, page_by_name
from tiltyard.mounts.thrift.client import ThriftClient, ThriftLimits, Wrap
from tiltyard.mounts.thrift.metastore import (
    CatalogFields,
    DatabaseFields,
    Metastore,
    MetastoreError,
    StorageFields,
    TableFields,
    placeholder_storage,
)
from tiltyard.mounts.thrift.structs import Struct, boolean, struct, text, text_list, text_map
from tiltyard.storage.locations import canonical_location

DEFAULT_PORT = 9083

_EXTERNAL_PROPERTIES = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": MARKER}
_HIDDEN_PROPERTIES = frozenset(
    (
        *_EXTERNAL_PROPERTIES, "transient_lastDdlTime", "last_modified_time", "last_modified_by", "numFiles", "numRows",
        "totalSize", "rawDataSize", "numFilesErasureCoded", "COLUMN_STATS_ACCURATE", "bucketing_version",
    )
)  # fmt: skip
"""What the metastore and engines keep among a table's parameters."""

_LANCE_TABLES = f'hive_filter_field_params__{MARKER_KEY} LIKE "(?i){MARKER}"'
_EXTERNAL_TABLE = "EXTERNAL_TABLE"
_MANAGED = "It is a MANAGED table: DROP TABLE in Hive or Spark deletes its files."
_ALL = -1
_OWN_CATALOG = Id(("hive",))
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|FileSystem not found")
"""The metastore makes the folder of a new table itself, and has no way to."""
_SKIP_STATISTICS = struct(Struct({1: text_map({"DO_NOT_UPDATE_STATS": "true"})}))
"""An EnvironmentContext: the metastore would list all files of a table whenever its entry changes."""


@dataclass(frozen=True)
class HiveSettings:
    """How to reach a metastore, and where new tables are put.

    `uri` is one or more of thrift://host:port, with commas between: of those that share a database, the first that
    answers. `root` is the location below which new tables are put where they get none; without it, they are put in
    their database's. `user` is who the metastore takes the server for. With `catalogs`, those of Hive 3 are the first
    level of namespaces. With `tls`, `ca_file` has the authorities whose certificates are accepted, `cert_file` and
    `key_file` are the mount's own. With `kerberos`, `principal` has its keys in `keytab`, or the host has a ticket;
    the metastore's principal is `kerberos_service`/`kerberos_host`, the host of its address without one.
    """

    uri: str
    root: str = ""
    user: str = ""
    catalogs: bool = False
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    kerberos: bool = False
    principal: str = ""
    keytab: str = ""
    kerberos_service: str = "hive"
    kerberos_host: str = ""
    timeout: float = 10.0
    connect_timeout: float = 3.0
    connections: int = 8

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        check_network(self.timeout, self.connect_timeout, self.connections, self.root)
        self.addresses()
        if not self.tls and (self.ca_file or self.cert_file):
            raise ValueError("ca_file and cert_file need tls")
        if bool(self.principal) != bool(self.keytab) or (self.keytab and not self.kerberos):
            raise ValueError("principal and keytab come together, with kerberos")

    def addresses(self) -> list[tuple[str, int]]:
        """Return the hosts and ports of `uri`."""
        addresses = []
        for uri in self.uri.split(","):
            parts = urlsplit(uri.strip())
            if parts.scheme != "thrift" or not parts.hostname or parts.path.strip("/"):
                raise ValueError(f"uri is {uri!r}: thrift://host:port")
            addresses.append((parts.hostname, parts.port or DEFAULT_PORT))
        return addresses


class HiveCatalog:
    """The databases and Lance tables of a metastore."""

    settings_type = HiveSettings
    kind = "hive"

    def __init__(self, settings: HiveSettings) -> None:
        """Parse; nothing is sent yet. Raises InvalidInputError for certificates that cannot be used."""
        self._settings = settings
        self._name = f"The Hive Metastore {settings.uri}"
        self._ids = DatabaseIds(
            self._name,
            re.compile(r"[a-z0-9_]{1,128}"),
            "up to 128 lower-case letters of ASCII, digits and '_'",
            self.levels,
            _name_in_catalog if settings.catalogs else attrgetter("name"),
        )
        groups = text_list([settings.user])
        client = ThriftClient(
            self._name,
            settings.addresses(),
            ThriftLimits(settings.timeout, settings.connect_timeout, settings.connections),
            ("set_ugi", Struct({1: text(settings.user), 2: groups})) if settings.user else None,
            tls_context(settings.ca_file, settings.cert_file, settings.key_file) if settings.tls else None,
            _kerberos(settings) if settings.kerberos else None,
        )
        self._metastore = Metastore(client)

    @property
    def levels(self) -> int:
        return 2 if self._settings.catalogs else 1

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        if len(parent) == self.levels:
            self.get_namespace(parent)
            return NamePage(())
        if not self._settings.catalogs:
            if parent:
                raise missing_namespace(parent)
            names = self._metastore.read("get_all_databases", {}).texts(0)
        elif parent:
            self._get_catalog(parent)
            names = self._metastore.read("get_databases", {1: text(_name_in_catalog(Id((*parent, "*"))))}).texts(0)
        else:
            names = self._metastore.read("get_catalogs", {}).struct(0).texts(1)
        return page_by_name(names, limit, token)

    def get_namespace(self, namespace: Id) -> Properties:
        if not namespace:
            return {}
        if self._is_catalog(namespace):
            self._get_catalog(namespace)
            return {}
        return self._get_database(namespace).text_map(DatabaseFields.PARAMETERS)

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        if self._is_catalog(namespace):
            self._create_catalog(namespace, properties)
            return
        name = self._ids.new_database(namespace)
        if namespace.parent:
            self._get_catalog(namespace.parent)
        database = Struct({DatabaseFields.NAME: text(name), DatabaseFields.PARAMETERS: text_map(properties)})
        if namespace.parent:
            database[DatabaseFields.CATALOG] = text(namespace.parent.name)
        try:
            self._metastore.write("create_database", {1: struct(database)})
        except MetastoreError as error:
            if error.exception == "AlreadyExistsException" or self._has_database(namespace):
                raise existing_namespace(namespace) from error
            raise self._translated(error) from error

    def drop_namespace(self, namespace: Id) -> None:
        if self._is_catalog(namespace):
            self._get_catalog(namespace)
            raise unsupported(self._name, "drop a catalog", "Hive deletes the files of its default database with it")
        name = self._ids.dropped_database(namespace)
        self._get_database(namespace)
        not_empty = non_empty_namespace(namespace)
        if self._metastore.read("get_all_tables", {1: text(name)}).texts(0):
            raise not_empty
        came_between = {"InvalidOperationException": not_empty}  # a table did, or there are functions
        with self._raising(missing_namespace(namespace), came_between):
            self._metastore.write("drop_database", {1: text(name), 2: boolean(False), 3: boolean(False)})

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        if len(namespace) < self.levels:
            self.get_namespace(namespace)
            return NamePage(())
        name = self._ids.database(namespace)
        request = {1: text(name), 2: text(_LANCE_TABLES), 3: (TType.I16, _ALL)}
        names = self._metastore.read("get_table_names_by_filter", request).texts(0)
        if not names:
            self._get_database(namespace)
        return page_by_name(names, limit, token)

    def get_table(self, table: Id) -> MountedTable:
        return self._described(table, self._get_entry(table))

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        database, name = self._ids.new_table(table)
        check_properties(properties, _HIDDEN_PROPERTIES)
        place = canonical_location(location) if location is not None else self._default_location(table)
        entry = {
            TableFields.NAME: text(name),
            TableFields.DATABASE: text(database),
            TableFields.STORAGE: struct(placeholder_storage(place)),
            TableFields.PARAMETERS: text_map({**properties, **MARKER_PROPERTIES, **_EXTERNAL_PROPERTIES}),
            TableFields.TYPE: text(_EXTERNAL_TABLE),
        }
        if self._settings.catalogs:
            entry[TableFields.CATALOG] = text(table.parent.parent.name)
        if self._settings.user:
            entry[TableFields.OWNER] = text(self._settings.user)
        try:
            self._metastore.write("create_table", {1: struct(Struct(entry))})
        except MetastoreError as error:
            self._get_database(table.parent)
            if error.exception == "AlreadyExistsException" or self._has_entry(table):
                raise existing_table(table) from error
            raise self._translated(error) from error
        return self.get_table(table)

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        check_properties(changes, _HIDDEN_PROPERTIES)
        entry = self._get_external_entry(table)
        parameters = with_changes(entry.text_map(TableFields.PARAMETERS), changes)
        self._alter(table, Struct({**entry, TableFields.PARAMETERS: text_map(parameters)}))
        return self.get_table(table)

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        database, name = self._ids.new_table(new_id)
        entry = self._get_external_entry(table)
        self._get_database(new_id.parent)
        if new_id.parent.parent != table.parent.parent:
            raise unsupported(self._name, "move a table to another catalog", "Hive does not let it")
        if self._has_entry(new_id):  # the metastore's message for it is like that of other failures
            raise existing_table(new_id)
        self._alter(table, Struct({**entry, TableFields.DATABASE: text(database), TableFields.NAME: text(name)}))
        return self.get_table(new_id)

    def deregister_table(self, table: Id) -> MountedTable:
        described = self._described(table, self._get_external_entry(table))
        database, name = self._ids.table(table)
        with self._raising(missing_table(table)):
            self._metastore.write("drop_table", {1: text(database), 2: text(name), 3: boolean(False)})
        return described

    def find_unsafe_tables(self, namespace: Id, names: Collection[str]) -> Mapping[str, str]:
        if not names:
            return {}
        request = {1: text(self._ids.database(namespace)), 2: text_list(list(names))}
        entries = self._metastore.read("get_table_objects_by_name", request).structs(0)
        return {entry.text(TableFields.NAME) or "": _MANAGED for entry in entries if not _is_external(entry)}

    def convert_table(self, table: Id) -> None:
        self._get_external_entry(table)

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return None: a metastore has no credentials for storage."""
        self.get_table(table)
        return None

    def close(self) -> None:
        self._metastore.close()

    def _default_location(self, table: Id) -> str:
        database = self._get_database(table.parent)
        if self._settings.root:
            folders = (canonical_location(self._settings.root).rstrip("/"), *table.parent.parent)
            return new_table_location(f"{'/'.join(folders)}/{table.parent.name}.db", table)
        if not (location := database.text(DatabaseFields.LOCATION)):
            raise InvalidInputError(f"The namespace '{table.parent}' has no location: name one for the table.")
        return new_table_location(normalized_location(location, is_encoded=False), table)

    def _is_catalog(self, namespace: Id) -> bool:
        return self._settings.catalogs and len(namespace) == 1

    def _get_catalog(self, namespace: Id) -> Struct:
        """Return a catalog of Hive 3. Raises NamespaceNotFoundError."""
        if not self._ids.name_pattern.fullmatch(namespace.name):
            raise missing_namespace(namespace)
        request = Struct({CatalogFields.NAME: text(namespace.name)})
        with self._raising(missing_namespace(namespace)):
            catalog: Struct = self._metastore.read("get_catalog", {1: struct(request)}).struct(0).struct(1)
        return catalog

    def _create_catalog(self, namespace: Id, properties: Properties) -> None:
        """Create a catalog of Hive 3 below the mount's root, or beside the databases of Hive's own."""
        if not self._ids.name_pattern.fullmatch(namespace.name):
            raise impossible_name(self._name, namespace.name, f"use {self._ids.name_rule}")
        if properties:
            raise unsupported(self._name, "keep properties of a catalog", "Hive has none")
        root = self._settings.root or self._get_catalog(_OWN_CATALOG).text(CatalogFields.LOCATION) or ""
        location = f"{root.rstrip('/')}/{namespace.name}"
        catalog = Struct({CatalogFields.NAME: text(namespace.name), CatalogFields.LOCATION: text(location)})
        with self._raising(None, {"AlreadyExistsException": existing_namespace(namespace)}):
            self._metastore.write("create_catalog", {1: struct(Struct({1: struct(catalog)}))})

    def _get_database(self, namespace: Id) -> Struct:
        """Return a database. Raises NamespaceNotFoundError."""
        name = self._ids.database(namespace)
        with self._raising(missing_namespace(namespace)):
            database: Struct = self._metastore.read("get_database", {1: text(name)}).struct(0)
        return database

    def _has_database(self, namespace: Id) -> bool:
        try:
            self._get_database(namespace)
        except NamespaceNotFoundError:
            return False
        return True

    def _get_any_entry(self, table: Id) -> Struct:
        """Return a table's entry, of whatever format. Raises TableNotFoundError, NamespaceNotFoundError."""
        database, name = self._ids.table(table)
        try:
            return self._metastore.read("get_table", {1: text(database), 2: text(name)}).struct(0)
        except MetastoreError as error:
            if error.exception != "NoSuchObjectException":
                raise self._translated(error) from error
        self._get_database(table.parent)
        raise missing_table(table)

    def _get_entry(self, table: Id) -> Struct:
        """Return a Lance table's entry. Raises TableNotFoundError, NamespaceNotFoundError."""
        entry = self._get_any_entry(table)
        if not is_lance(entry.text_map(TableFields.PARAMETERS)):
            raise other_format_error(self._name, table)
        return entry

    def _has_entry(self, table: Id) -> bool:
        try:
            self._get_any_entry(table)
        except TableNotFoundError:
            return False
        return True

    def _get_external_entry(self, table: Id) -> Struct:
        """Return a Lance table's entry, after converting it if it is managed."""
        entry = self._get_entry(table)
        if _is_external(entry):
            return entry
        parameters = {**entry.text_map(TableFields.PARAMETERS), **_EXTERNAL_PROPERTIES}
        external = {TableFields.PARAMETERS: text_map(parameters), TableFields.TYPE: text(_EXTERNAL_TABLE)}
        self._alter(table, Struct({**entry, **external}))
        return self._get_entry(table)

    def _alter(self, table: Id, entry: Struct) -> None:
        """Write a changed entry. Raises TableNotFoundError where it is gone."""
        database, name = self._ids.table(table)
        request = {1: text(database), 2: text(name), 3: struct(entry), 4: _SKIP_STATISTICS}
        try:
            self._metastore.write("alter_table_with_environment_context", request)
        except MetastoreError as error:
            if not self._has_entry(table):
                raise missing_table(table) from error
            if "already exists" in str(error):
                raise TableAlreadyExistsError("There is a table of this name already.") from error
            raise self._translated(error) from error

    def _described(self, table: Id, entry: Struct) -> MountedTable:
        location = entry.struct(TableFields.STORAGE).text(StorageFields.LOCATION) or ""
        return MountedTable(
            table,
            normalized_location(location, is_encoded=False),
            user_properties(entry.text_map(TableFields.PARAMETERS), _HIDDEN_PROPERTIES),
        )

    @contextmanager
    def _raising(
        self, missing: LanceNamespaceError | None, others: Mapping[str, LanceNamespaceError] = MappingProxyType({})
    ) -> Iterator[None]:
        """Raise these errors for what is not there and for other exceptions, for all else what it means anywhere."""
        try:
            yield
        except MetastoreError as error:
            known = missing if error.exception == "NoSuchObjectException" else others.get(error.exception)
            raise known or self._translated(error) from error

    def _translated(self, error: MetastoreError) -> LanceNamespaceError:
        """Translate an exception that no method expects; its text may be a trace of the metastore's."""
        message = str(error)
        if re.search(r"[Pp]ermission denied|AccessControl|not authorized|No privilege", message):
            return FORBIDDEN.error(self._name)
        if error.exception == "InvalidObjectException" or _NO_FILE_SYSTEM.search(message):
            return InvalidInputError(f"{self._name} does not take this location or name: choose another one.")
        if "default database" in message:
            return InvalidInputError(f"{self._name} does not drop its default database.")
        if re.search(r"JDO|[Cc]onnection|SQLException|Communications link", message):
            return UNAVAILABLE.error(f"The database of {self._name}")
        return InternalError(f"{self._name} has failed: its log says why.")


def _kerberos(settings: HiveSettings) -> Wrap:
    """Return what authenticates connections. Raises InvalidInputError where the package for it is not installed."""
    try:
        module: Any = import_module("tiltyard.mounts.thrift.kerberos")
    except ImportError as error:
        raise InvalidInputError(
            f"A mount of the kind 'hive' needs more packages for Kerberos ({error.name} is missing): "
            'pip install "tiltyard[kerberos]".'
        ) from error
    wrap: Wrap = module.Kerberos(
        settings.kerberos_service, settings.kerberos_host, settings.principal, settings.keytab, settings.timeout
    ).wrap
    return wrap


def _name_in_catalog(namespace: Id) -> str:
    """Return the name of a database of another catalog than Hive's own, as calls of all versions take it."""
    return f"@{namespace.parent.name}#{namespace.name}"


def _is_external(entry: Struct) -> bool:
    return entry.text(TableFields.TYPE) == _EXTERNAL_TABLE
