"""What operations need of the caller, as they declare it: `@operation(needs=on_table(Privilege.READ))`.

It is checked before the operation runs, never for administrators (`Handler.authorize`). An object that the caller
cannot see is reported as missing; `tests/access` checks every operation, and docs/security.md has the table of all
needs.

Of operations on an object's name:

- A new object needs `create` on its namespace. Where the name exists, the operation needs what it does to the object
  there. The creator gets the privileges CREATOR_PRIVILEGES on it.
- A location that the caller chooses belongs to no table yet, so nothing can be granted on it: it needs `administer` on
  the server.
- A table inherits the grants on its namespace, so moving it changes who has access: that needs `manage_grants`.
- All entries of a batch are checked before the first of them runs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    TransactionNotFoundError,
)

from tiltyard.access.authorization import (
    authorize_namespace,
    authorize_record,
    authorize_server,
    authorize_table,
    caller_rights,
    missing_privileges,
    require_decision,
)
from tiltyard.access.policies import policy_denial
from tiltyard.model.ids import Id, namespace_id, parse_id, table_id
from tiltyard.model.jobs import DELETE
from tiltyard.model.modes import CreateMode, DropMode, parse_mode
from tiltyard.model.operations import Needs
from tiltyard.model.principals import ALL, Privilege, privilege_names
from tiltyard.store import Creator
from tiltyard.store.access.grants import NAMESPACE, TABLE
from tiltyard.store.repository import display_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.model.spec import models
    from tiltyard.store import TableRecord, TransactionRecord


def _format_privileges(privileges: int) -> str:
    """Format privileges for the documentation."""
    return ", ".join(f"`{name}`" for name in privilege_names(privileges))


def on_table(privileges: Privilege, *, enforces_policies: bool = False) -> Needs:
    """Need these privileges on the table that the request names.

    An operation that `enforces_policies` applies the table's policies itself; any other is denied to callers whom
    policies of the table bind.
    """
    required = int(privileges)

    def authorize(ctx: Context, request: Any) -> Context:
        path = table_id(request.id)
        return ctx.with_resolved({path: authorize_table(ctx, path, required, enforces_policies=enforces_policies)})

    return Needs(f"{_format_privileges(required)} on the table", authorize)


def on_namespace(privileges: Privilege) -> Needs:
    """Need these privileges on the namespace that the request names."""
    required = int(privileges)

    def authorize(ctx: Context, request: Any) -> Context:
        path = namespace_id(request.id)
        return ctx.with_resolved({}, {path: authorize_namespace(ctx, path, required)})

    return Needs(f"{_format_privileges(required)} on the namespace", authorize)


def on_parent(privileges: Privilege, kind: str) -> Needs:
    """Need these privileges on the namespace of the object that the request names; `kind` is what it is called."""
    required = int(privileges)

    def authorize(ctx: Context, request: Any) -> Context:
        parent = table_id(request.id).parent
        return ctx.with_resolved({}, {parent: authorize_namespace(ctx, parent, required)})

    return Needs(f"{_format_privileges(required)} on the {kind}'s namespace", authorize)


def on_server(privileges: Privilege) -> Needs:
    """Need these privileges on the whole server."""
    required = int(privileges)

    def authorize(ctx: Context, request: Any) -> Context:
        authorize_server(ctx, required)
        return ctx

    return Needs(f"{_format_privileges(required)} on the server", authorize)


ADMINISTRATORS = on_server(Privilege.ADMINISTER)


def _see_namespace(ctx: Context, request: Any) -> Context:
    authorize_namespace(ctx, namespace_id(request.id), 0)
    return ctx


def _allow(ctx: Context, request: Any) -> Context:
    return ctx


def _drop_namespace(ctx: Context, request: Any) -> Context:
    path = namespace_id(request.id)
    try:
        resolved_id = authorize_namespace(ctx, path, Privilege.DROP.value)
    except NamespaceNotFoundError:
        if parse_mode(DropMode, request.mode, DropMode.FAIL) is not DropMode.SKIP:
            raise
        resolved_id = 0
    return ctx.with_resolved({}, {path: resolved_id})


SEE_NAMESPACE = Needs("any privilege on the namespace, above it or below it", _see_namespace)
DROP_NAMESPACE = Needs("`drop` on the namespace, and so on all below it", _drop_namespace)
OWNER_OR_ADMINISTRATOR = Needs("nothing for the caller's own; `administer` on the server for others'", _allow)
"""The operation itself checks whose object it is."""
ANY_CALLER = Needs("nothing: any authenticated caller; the response has what the caller can see", _allow)


_CODE = Privilege.RUN_UDFS | Privilege.CREATE_FUNCTION | Privilege.MANAGE_SECRETS
_OVER_OWNERS = Privilege.CLASSIFY | Privilege.LEGAL_HOLD | Privilege.APPROVE
CREATOR_PRIVILEGES = ALL & ~(_CODE | _OVER_OWNERS | Privilege.ADMINISTER)
"""The privileges of a creator. Not to run or register code: jobs run as the worker does, and read what it can. Not to
classify: what others mask by a classification is not the creator's to lift. Nor to lift a legal hold, which may be
about what the creator did, or to approve what others ask for.
"""
_ANY_LOCATION = "the server to name a location"
_MOVE = Privilege.DROP | Privilege.MANAGE_GRANTS


# Creating


def creator_for(ctx: Context, parent: Id) -> Creator | None:
    """Return who gets a creator's privileges on a new object in a namespace; None where the caller has them already.

    Raises NamespaceNotFoundError, ServiceUnavailableError.
    """
    if ctx.principal.administrator:
        return None
    parent_id = ctx.find_namespace(parent).id
    if caller_rights(ctx).on_namespace(parent_id) & CREATOR_PRIVILEGES == CREATOR_PRIVILEGES:
        return None
    return Creator(ctx.principal.name, CREATOR_PRIVILEGES)


def _authorize_new_table(ctx: Context, path: Id, location: str | None) -> Mapping[Id, int]:
    """Check a new table; return the id of its namespace. Raises NamespaceNotFoundError, PermissionDeniedError."""
    parent_id = authorize_namespace(ctx, path.parent, Privilege.CREATE.value)
    if location:
        authorize_server(ctx, Privilege.ADMINISTER.value, _ANY_LOCATION)
    return {path.parent: parent_id}


def _create_namespace(ctx: Context, request: Any) -> Context:
    path = namespace_id(request.id)
    required = Privilege.CREATE.value
    if parse_mode(CreateMode, request.mode, CreateMode.CREATE) is CreateMode.OVERWRITE:
        required |= Privilege.DROP.value
    return ctx.with_resolved({}, {path.parent: authorize_namespace(ctx, path.parent, required)})


def _declare_table(ctx: Context, request: Any) -> Context:
    return ctx.with_resolved({}, _authorize_new_table(ctx, table_id(request.id), request.location))


def _register_table(ctx: Context, request: Any) -> Context:
    return ctx.with_resolved({}, _authorize_new_table(ctx, table_id(request.id), request.location or _ANY_LOCATION))


def _create_table(ctx: Context, request: Any) -> Context:
    mode = parse_mode(CreateMode, request.mode, CreateMode.CREATE)
    return authorize_table_creation(ctx, table_id(request.id), mode, request.location)


def authorize_table_creation(ctx: Context, path: Id, mode: CreateMode, location: str | None) -> Context:
    """Check the creation of a table with data, by what has its name. Raises …NotFoundError, PermissionDeniedError."""
    record = _find_visible_table(ctx, path)
    if record is None:
        return ctx.with_resolved({path: None}, _authorize_new_table(ctx, path, location))
    if mode is CreateMode.OVERWRITE:
        authorize_record(ctx, path, record, Privilege.WRITE | Privilege.ALTER)
    elif record.declared:
        authorize_record(ctx, path, record, Privilege.WRITE.value)
    return ctx.with_resolved({path: record})


def _find_visible_table(ctx: Context, path: Id) -> TableRecord | None:
    """Return the table that has the name, if the caller can see it: with `create` it sees the whole namespace."""
    with suppress(TableNotFoundError, NamespaceNotFoundError):
        return authorize_table(ctx, path, Privilege.USE.value, enforces_policies=True)  # its existence shows no row
    return None


def _clone_table(ctx: Context, request: Any) -> Context:
    ctx = ctx.with_resolved({}, _authorize_new_table(ctx, table_id(request.id), None))
    rights = caller_rights(ctx)
    is_checked = not rights.server & Privilege.ADMINISTER
    if is_checked or ctx.services.decisions is not None:
        try:
            source = ctx.store.table_at(ctx.storage.check_location(request.source_location))
        except InvalidInputError:
            source = None  # what is there is not disclosed to callers who cannot read it
        if source is not None and (path := ctx.store.object_path(TABLE, source.id)) is not None:
            require_decision(ctx, TABLE, path, Privilege.READ.value)
    if is_checked:
        if source is None or not rights.allow(source, Privilege.READ.value):
            raise PermissionDeniedError("This needs read on the table at source_location: ask for a grant of it.")
        if rights.effective_policy(source.id) is not None:
            raise policy_denial("the table at source_location")
    return ctx


CREATE_NAMESPACE = Needs("`create` on the namespace above; to overwrite, `drop` on it too", _create_namespace)
DECLARE_VIEW = Needs(
    "`create` on the namespace, `read` on the tables of its query",
    lambda ctx, request: ctx.with_resolved({}, _authorize_new_table(ctx, table_id(request.id), None)),
)
DECLARE_TABLE = Needs("`create` on the namespace; with a location, `administer` on the server", _declare_table)
REGISTER_TABLE = Needs("`create` on the namespace, `administer` on the server", _register_table)
CREATE_TABLE = Needs(
    "`create` on the namespace, with a location `administer` on the server; where the table exists, `use` on it, "
    "`write` on it if it is only declared, `write` and `alter` to overwrite",
    _create_table,
)
CLONE_TABLE = Needs("`create` on the namespace, `read` on the table at `source_location`", _clone_table)


# Renaming and restoring


def target_namespace(path: Id, new_namespace: Sequence[str] | None) -> Id:
    """Return the namespace that a table moves to: its own, unless another is named. Raises InvalidInputError."""
    return path.parent if new_namespace is None else namespace_id(new_namespace)


def _rename_table(ctx: Context, request: Any) -> Context:
    path = table_id(request.id)
    parent = target_namespace(path, request.new_namespace_id)
    record = authorize_table(ctx, path, int(_MOVE) if parent != path.parent else Privilege.ALTER.value)
    return ctx.with_resolved({path: record}, {parent: authorize_namespace(ctx, parent, Privilege.CREATE.value)})


def _undrop_table(ctx: Context, request: Any) -> Context:
    path = table_id(request.id)
    parent = target_namespace(path, request.new_namespace_id)
    removed = ctx.store.find_removed_table(path, request.dropped_id)
    required = _MOVE if parent != path.parent else Privilege.DROP
    bits = caller_rights(ctx).on_table(removed.id, removed.namespace_id)
    if bits & required != required:
        raise TableNotFoundError(f"No dropped table is kept under the name {display_path(path)}")
    require_decision(ctx, TABLE, path, int(required))
    if parent != path.parent and caller_rights(ctx).effective_policy(removed.id) is not None:
        raise policy_denial("the dropped table, which another namespace may classify otherwise")
    request.dropped_id = removed.id  # the one that was checked, whatever is dropped meanwhile
    return ctx.with_resolved({}, {parent: authorize_namespace(ctx, parent, Privilege.CREATE.value)})


def _undrop_namespace(ctx: Context, request: Any) -> Context:
    path = namespace_id(request.id)
    parent = (path if request.new_namespace_id is None else namespace_id(request.new_namespace_id)).parent
    if not path:
        return ctx  # the operation refuses the root
    removed = ctx.store.find_removed_namespace(path, request.dropped_id)
    required = _MOVE if parent != path.parent else Privilege.DROP
    if caller_rights(ctx).on_namespace(removed.id) & required != required:
        raise NamespaceNotFoundError(f"No dropped namespace is kept under the name {display_path(path)}")
    require_decision(ctx, NAMESPACE, path, int(required))
    if parent != path.parent and caller_rights(ctx).classification_policies:
        raise policy_denial("the dropped namespace, which another one may classify otherwise")
    request.dropped_id = removed.id
    return ctx.with_resolved({}, {parent: authorize_namespace(ctx, parent, Privilege.CREATE.value)})


RENAME_TABLE = Needs(
    "`alter` on the table and `create` on its namespace; into another namespace, `drop` and `manage_grants` on the "
    "table and `create` on that one",
    _rename_table,
)
UNDROP_TABLE = Needs(
    "`drop` on what was the table (into another namespace `manage_grants` too), `create` on the namespace",
    _undrop_table,
)
UNDROP_NAMESPACE = Needs(
    "`drop` on what was the namespace (to another place `manage_grants` too), `create` on the one above",
    _undrop_namespace,
)


# Batches


def _batch_commit(ctx: Context, request: models.BatchCommitTablesRequest) -> Context:
    declared: set[Id] = set()
    tables: dict[Id, TableRecord | None] = {}
    namespaces: dict[Id, int] = {}

    def authorize(names: Sequence[str] | None, required: Privilege) -> None:
        """Check an entry on a table, unless this batch declares the table: then the caller is its creator."""
        path = table_id(names)
        if path not in declared:
            tables[path] = authorize_table(ctx, path, required.value)

    for entry in request.operations:
        if entry.declare_table is not None:
            path, location = table_id(entry.declare_table.id), entry.declare_table.location
            if location and ctx.store.is_location_reserved(location, ctx.principal.name):
                location = None  # the server has chosen it, for this very principal
            namespaces.update(_authorize_new_table(ctx, path, location))
            declared.add(path)
        if entry.create_table_version is not None:
            authorize(entry.create_table_version.id, Privilege.WRITE)
        if entry.delete_table_versions is not None:
            authorize(entry.delete_table_versions.id, Privilege.WRITE)
        if entry.check_table_version is not None:
            authorize(entry.check_table_version.id, Privilege.READ)
        if entry.deregister_table is not None:
            authorize(entry.deregister_table.id, Privilege.DROP)
    return ctx.with_resolved(tables, namespaces)


def _batch_create_versions(ctx: Context, request: models.BatchCreateTableVersionsRequest) -> Context:
    paths = [table_id(entry.id) for entry in request.entries]
    return ctx.with_resolved({path: authorize_table(ctx, path, Privilege.WRITE.value) for path in paths})


BATCH_COMMIT_TABLES = Needs(
    "for each entry: to declare `create` on the namespace (with a location that no batch of the caller's own has "
    "reserved `administer` on the server), to create or delete versions `write`, to check one `read`, to deregister "
    "`drop` on the table",
    _batch_commit,
)
BATCH_CREATE_VERSIONS = Needs("`write` on each table", _batch_create_versions)


# Transactions and jobs: their submitter sees its own, other callers those of tables that they see


def _submitter_or(required: int) -> Callable[[Context, Any], Context]:
    """Return a check for the submitter of a transaction, or `required` privileges on its table."""

    def authorize(ctx: Context, request: Any) -> Context:
        if not request.id or len(request.id) != 1:
            return ctx  # the operation refuses such an id
        return authorize_job(ctx, request.id[0])

    authorize_job = _submitter_of_job_or(required)
    return authorize


def _submitter_of_job_or(required: int) -> Callable[[Context, str], Context]:
    """Return the same check for the id of a transaction."""

    def authorize(ctx: Context, name: str) -> Context:
        record = ctx.store.describe_transaction(name)
        if record.requested_by != ctx.principal.name:
            bits = _transaction_privileges(ctx, record)
            if not bits:
                raise TransactionNotFoundError(f"Transaction not found: {name}")
            if bits & required != required:
                raise missing_privileges(required & ~bits, "the transaction's table")
        path = None if record.table_id is None else ctx.store.object_path(TABLE, record.table_id)
        if path is not None:  # of the submitter's own, too
            require_decision(ctx, TABLE, path, required)
        return ctx

    return authorize


def may_see_arguments(ctx: Context, record: TransactionRecord) -> bool:
    """Return whether the caller may see the arguments of a job that it may describe."""
    if ctx.principal.administrator or record.requested_by == ctx.principal.name:
        return True
    return bool(_transaction_privileges(ctx, record) & Privilege.RUN_UDFS)


def _transaction_privileges(ctx: Context, record: TransactionRecord) -> int:
    """Return the caller's privileges on the table of a transaction; without a table, those on the whole server."""
    rights = caller_rights(ctx)
    if record.table_id is not None:
        with suppress(TableNotFoundError):
            table = ctx.store.table_by_id(record.table_id)
            if rights.on_table(table.id, table.namespace_id) and rights.effective_policy(table.id) is not None:
                raise policy_denial("the transaction's table")
            return rights.on_table(table.id, table.namespace_id)
    return rights.server


def _list_all_jobs(ctx: Context, request: Any) -> Context:
    """Check that the caller sees the table whose jobs are listed. Raises TableNotFoundError, PermissionDeniedError."""
    if request.table is not None:
        path = table_id(parse_id(request.table))
        return ctx.with_resolved({path: authorize_table(ctx, path, 0)})
    return ctx


def _submit_job(ctx: Context, request: Any) -> Context:
    path = table_id(request.table) if request.table else Id()
    required = privileges_of_job(ctx, path, request.name, has_spark=bool(request.spark))
    return authorize_submission(ctx, path, required.value)


def authorize_submission(ctx: Context, path: Id, required: int) -> Context:
    """Check the submission of a job: on its table, or on the namespace where the job is to create the table.

    Raises PermissionDeniedError, TableNotFoundError, NamespaceNotFoundError.
    """
    if not path:
        authorize_server(ctx, required)
        return ctx
    try:
        authorize_table(ctx, path, required)
    except TableNotFoundError:
        authorize_namespace(ctx, path.parent, required)
    return ctx


def privileges_of_job(ctx: Context, path: Id, name: str, *, has_spark: bool) -> Privilege:
    """Return what submitting a job needs on its table; `has_spark` says that it has properties of Spark of its own.

    A delete runs no code of its submitter, and does what DeleteFromTable does: who may do that needs no more.
    """
    if name != DELETE or has_spark or ctx.is_unchecked:
        return Privilege.RUN_UDFS
    try:
        table = ctx.look_up_table(path)
    except (TableNotFoundError, NamespaceNotFoundError):
        return Privilege.RUN_UDFS
    has_all = caller_rights(ctx).on_table(table.id, table.namespace_id) & Privilege.RUN_UDFS
    return Privilege.RUN_UDFS if has_all else Privilege.READ | Privilege.WRITE


DESCRIBE_TRANSACTION = Needs("to be its submitter, or `use` on its table", _submitter_or(Privilege.USE.value))
SUBMIT_JOB = Needs(
    "`run_udfs` on its table, on the namespace of one to be made, without one on the server; or, to delete "
    "rows, `read` and `write` on it",
    _submit_job,
)
OWN_JOB = Needs("to be its submitter, or `run_udfs` on its table", _submitter_or(Privilege.RUN_UDFS.value))
DESCRIBE_JOB_STATE = Needs(
    "to be its submitter, or `use` on its table; its arguments need `run_udfs` there",
    lambda ctx, request: _submitter_of_job_or(Privilege.USE.value)(ctx, request.job_id),
)
ALTER_JOB = Needs(
    "to be its submitter, or `alter` on its table",
    lambda ctx, request: _submitter_of_job_or(Privilege.ALTER.value)(ctx, request.job_id),
)
LIST_ALL_JOBS = Needs("nothing: the caller's own jobs, and those on whose table it has `use`", _list_all_jobs)
LIST_JOBS = Needs(
    "nothing: the caller's own jobs, and those on whose table it has `run_udfs`", lambda ctx, request: ctx
)
ALTER_TRANSACTION = Needs("to be its submitter, or `alter` on its table", _submitter_or(Privilege.ALTER.value))
