"""AWS Glue's Data Catalog: its databases are namespaces, its tables with Lance's marker are tables.

Glue never touches data. It deletes a database with all tables in it, so emptiness is checked here first. It cannot
rename a table. Each entry has a version: a change is made on the version that was read, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError

from tiltyard.model.ids import Id
from tiltyard.mounts.catalog_errors import (
    CONFLICT,
    FORBIDDEN,
    INVALID,
    THROTTLED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    CatalogFailure,
    existing_namespace,
    existing_table,
    missing_namespace,
    missing_table,
    non_empty_namespace,
    unsupported,
)
from tiltyard.mounts.database_ids import DatabaseIds
from tiltyard.mounts.http.aws_keys import AwsKeys
from tiltyard.mounts.http.aws_session import aws_session
from tiltyard.mounts.lance_entries import (
    MARKER,
    MARKER_PROPERTIES,
    check_properties,
    is_lance,
    new_table_location,
    normalized_location,
    other_format_error,
    user_properties,
    with_changes,
)
from tiltyard.mounts.mount_settings import check_network
from tiltyard.mounts.mounted_catalog import MountedTable, NamePage, Properties, StorageCredentials
from tiltyard.mounts.paged_lists import collect_page
from tiltyard.storage.locations import canonical_location

PAGE_SIZE = 100
"""Glue's largest page."""

_HIDDEN_PROPERTIES = frozenset(("EXTERNAL", "spark.sql.sources.provider"))
_ENTRY_PARAMETERS = {**MARKER_PROPERTIES, "EXTERNAL": "TRUE", "spark.sql.sources.provider": MARKER}
_TABLE_INPUT = frozenset(
    (
        "Name", "Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention", "StorageDescriptor",
        "PartitionKeys", "ViewOriginalText", "ViewExpandedText", "TableType", "Parameters", "TargetTable",
        "ViewDefinition",
    )
)  # fmt: skip
"""Parts of an entry that an update may and must have: what is left out of it is removed."""

_FAILURES = {
    **dict.fromkeys(
        ("ThrottlingException", "Throttling", "TooManyRequestsException", "ResourceNumberLimitExceeded"), THROTTLED
    ),
    **dict.fromkeys(("ConcurrentModificationException", "VersionMismatchException"), CONFLICT),
    **dict.fromkeys(("AccessDeniedException", "AccessDenied"), FORBIDDEN),
    **dict.fromkeys(
        ("UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException"), UNAUTHENTICATED
    ),
    **dict.fromkeys(("InvalidInputException", "ValidationException", "PermissionTypeMismatchException"), INVALID),
    **dict.fromkeys(("OperationTimeoutException", "InternalServiceException", "ServiceUnavailable"), UNAVAILABLE),
}
"""What the codes of Glue's errors mean, without those of things that exist or do not."""


@dataclass(frozen=True, kw_only=True)
class GlueSettings(AwsKeys):
    """Which Data Catalog is mounted, and with whose keys.

    `catalog_id` is the account of the catalog, `root` the location below which new tables are put where they get none
    and their database has none. With `lake_formation`, storage credentials are those that Lake Formation vends to the
    mount's principal. `timeout` is for one request, of which a call has up to three.
    """

    region: str
    endpoint: str = ""
    catalog_id: str = ""
    root: str = ""
    lake_formation: bool = False
    lake_formation_endpoint: str = ""
    timeout: float = 10.0
    connect_timeout: float = 3.0
    connections: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        check_network(self.timeout, self.connect_timeout, self.connections, self.root)
        self.check_keys()


class GlueCatalog:
    """The databases and Lance tables of a Data Catalog."""

    settings_type = GlueSettings
    kind = "glue"
    levels = 1

    def __init__(self, settings: GlueSettings) -> None:
        """Make the client; nothing is sent yet. Raises InvalidInputError for an unusable profile or endpoint."""
        self._settings = settings
        self._name = f"The Glue catalog {settings.catalog_id or settings.region}"
        self._ids = DatabaseIds(
            self._name, re.compile(r"[a-z0-9_-]{1,255}"), "up to 255 lower-case letters of ASCII, digits, '_' and '-'"
        )
        try:
            self._session = aws_session(settings, settings.region)
            self._client = self._service("glue", settings.endpoint)
            self._lake_formation = self._service("lakeformation", settings.lake_formation_endpoint)
        except (BotoCoreError, ValueError) as error:
            raise InvalidInputError("The mount's region, profile or endpoint cannot be used.") from error

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        if parent:
            self.get_namespace(parent)
            return NamePage(())
        with self._raising({}):
            return self._list("get_databases", {}, "DatabaseList", limit, token, lambda database: True)

    def get_namespace(self, namespace: Id) -> Properties:
        return dict(self._get_database(namespace).get("Parameters") or {}) if namespace else {}

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        name = self._ids.new_database(namespace)
        with self._raising({"AlreadyExistsException": existing_namespace(namespace)}):
            self._call("create_database", DatabaseInput={"Name": name, "Parameters": dict(properties)})

    def drop_namespace(self, namespace: Id) -> None:
        name = self._ids.dropped_database(namespace)
        with self._raising({"EntityNotFoundException": missing_namespace(namespace)}):
            if self._call("get_tables", DatabaseName=name, MaxResults=1)["TableList"]:
                raise non_empty_namespace(namespace)
            self._call("delete_database", Name=name)

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        if not namespace:
            return NamePage(())
        request = {"DatabaseName": self._ids.database(namespace)}
        with self._raising({"EntityNotFoundException": missing_namespace(namespace)}):
            return self._list("get_tables", request, "TableList", limit, token, _is_lance)

    def get_table(self, table: Id) -> MountedTable:
        return _described(table, self._get_entry(table))

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        database, name = self._ids.new_table(table)
        check_properties(properties, _HIDDEN_PROPERTIES)
        place = canonical_location(location) if location is not None else self._default_location(table)
        entry = {
            "Name": name,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": {**properties, **_ENTRY_PARAMETERS},
            "StorageDescriptor": _storage_descriptor(place),
        }
        errors = {
            "AlreadyExistsException": existing_table(table),
            "EntityNotFoundException": missing_namespace(table.parent),
        }
        with self._raising(errors):
            self._call("create_table", DatabaseName=database, TableInput=entry)
        return self.get_table(table)

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        check_properties(changes, _HIDDEN_PROPERTIES)
        entry = self._get_entry(table)
        changed = {key: value for key, value in entry.items() if key in _TABLE_INPUT}
        changed["Parameters"] = with_changes(entry["Parameters"], changes)
        version = {"VersionId": entry["VersionId"]} if entry.get("VersionId") else {}
        with self._raising({"EntityNotFoundException": missing_table(table)}):
            self._call("update_table", DatabaseName=table.parent.name, TableInput=changed, SkipArchive=True, **version)
        return self.get_table(table)

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        raise unsupported(self._name, "rename a table", "Glue has no request for it")

    def deregister_table(self, table: Id) -> MountedTable:
        described = self.get_table(table)
        with self._raising({"EntityNotFoundException": missing_table(table)}):
            self._call("delete_table", DatabaseName=table.parent.name, Name=table.name)
        return described

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return what Lake Formation vends; None without it, since Glue itself vends nothing."""
        entry = self._get_entry(table)
        if not self._settings.lake_formation:
            return None
        account = entry.get("CatalogId") or self._settings.catalog_id
        partition = self._session.get_partition_for_region(self._settings.region)
        name = f"arn:{partition}:glue:{self._settings.region}:{account}:table/{table.parent.name}/{table.name}"
        with self._raising({"EntityNotFoundException": missing_table(table)}):
            response = self._send(
                self._lake_formation.get_temporary_glue_table_credentials,
                TableArn=name,
                Permissions=["SELECT", "INSERT", "DELETE"] if writable else ["SELECT"],
                SupportedPermissionTypes=["COLUMN_PERMISSION"],
            )
        options = {
            "aws_access_key_id": response["AccessKeyId"],
            "aws_secret_access_key": response["SecretAccessKey"],
            "aws_session_token": response["SessionToken"],
            "aws_region": self._settings.region,
        }
        expires_at = int(response["Expiration"].timestamp() * 1000)
        return StorageCredentials(options, expires_at, is_read_only=not writable)

    def close(self) -> None:
        self._client.close()
        self._lake_formation.close()

    def _service(self, name: str, endpoint: str) -> Any:
        """Make a client of one of AWS's services; nothing is sent yet."""
        settings = self._settings
        return self._session.create_client(
            name,
            region_name=settings.region,
            endpoint_url=endpoint or None,
            config=Config(
                connect_timeout=settings.connect_timeout,
                read_timeout=settings.timeout,
                max_pool_connections=settings.connections,
                retries={"mode": "standard", "total_max_attempts": 3},
            ),
        )

    def _default_location(self, table: Id) -> str:
        location = self._get_database(table.parent).get("LocationUri")
        if location:
            return new_table_location(normalized_location(location, is_encoded=False), table)
        if self._settings.root:
            root = canonical_location(self._settings.root).rstrip("/")
            return new_table_location(f"{root}/{table.parent.name}", table)
        raise InvalidInputError(f"The namespace '{table.parent}' has no location: name one for the table.")

    def _get_database(self, namespace: Id) -> dict[str, Any]:
        name = self._ids.database(namespace)
        with self._raising({"EntityNotFoundException": missing_namespace(namespace)}):
            database: dict[str, Any] = self._call("get_database", Name=name)["Database"]
        return database

    def _get_entry(self, table: Id) -> dict[str, Any]:
        """Return a Lance table's entry. Raises TableNotFoundError, NamespaceNotFoundError."""
        database, name = self._ids.table(table)
        try:
            entry: dict[str, Any] = self._call("get_table", DatabaseName=database, Name=name)["Table"]
        except ClientError as error:
            if _code(error) == "EntityNotFoundException":
                self._get_database(table.parent)
                raise missing_table(table) from error
            raise self._translated(error) from error
        if not _is_lance(entry):
            raise other_format_error(self._name, table)
        return entry

    def _list(
        self,
        method: str,
        request: Mapping[str, Any],
        key: str,
        limit: int | None,
        token: str | None,
        is_listed: Callable[[dict[str, Any]], bool],
    ) -> NamePage:
        """List names: where some entries are left out, further pages of Glue's fill ours. Raises ClientError."""

        def fetch(page: str, size: int | None) -> tuple[list[dict[str, Any]], str | None]:
            following = {"NextToken": page} if page else {}
            response = self._call(method, **request, MaxResults=min(PAGE_SIZE, size or PAGE_SIZE), **following)
            return response[key], response.get("NextToken")

        entries, following = collect_page(
            self._name, fetch, limit, token, lambda chunk: [is_listed(entry) for entry in chunk]
        )
        return NamePage(tuple(entry["Name"] for entry in entries), following)

    def _call(self, method: str, **request: Any) -> Any:
        """Send a request to Glue. Raises as `_send` does."""
        catalog = {"CatalogId": self._settings.catalog_id} if self._settings.catalog_id else {}
        return self._send(getattr(self._client, method), **catalog, **request)

    def _send(self, method: Callable[..., Any], **request: Any) -> Any:
        """Send a request. Raises ClientError, ServiceUnavailableError, UnauthenticatedError."""
        try:
            return method(**request)
        except ClientError:
            raise
        except BotoCoreError as error:
            failure = UNAUTHENTICATED if isinstance(error, NoCredentialsError) else UNAVAILABLE
            raise failure.error(self._name) from error

    @contextmanager
    def _raising(self, errors: Mapping[str, LanceNamespaceError]) -> Iterator[None]:
        """Raise these errors for Glue's of these codes, and for others what they mean anywhere."""
        try:
            yield
        except ClientError as error:
            raise errors.get(_code(error)) or self._translated(error) from error

    def _translated(self, error: ClientError) -> LanceNamespaceError:
        failure = _FAILURES.get(_code(error)) or CatalogFailure(InternalError, f"has failed: {_code(error)}")
        return failure.error(self._name)


def _code(error: ClientError) -> str:
    code: str = error.response.get("Error", {}).get("Code", "")
    return code


def _is_lance(entry: Mapping[str, Any]) -> bool:
    return is_lance(entry.get("Parameters"))


def _described(table: Id, entry: Mapping[str, Any]) -> MountedTable:
    return MountedTable(
        table,
        normalized_location(entry.get("StorageDescriptor", {}).get("Location", ""), is_encoded=False),
        user_properties(entry.get("Parameters"), _HIDDEN_PROPERTIES),
    )


def _storage_descriptor(location: str) -> dict[str, Any]:
    """Return what engines need of every table: here a column that says that this is no table for them."""
    return {
        "Location": location,
        "Columns": [{"Name": "__placeholder_id", "Type": "bigint"}],
        "InputFormat": "org.apache.hadoop.mapred.TextInputFormat",
        "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
        "SerdeInfo": {"SerializationLibrary": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"},
    }
