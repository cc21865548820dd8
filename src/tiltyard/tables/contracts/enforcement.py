"""Check that the rows a version brings pass the contract of its table, where it is recorded: whoever commits it.

It is the gate of primary keys (`tables.keys.enforcement`), and holds for the same reason: a version is recorded only
while its table has the contract that it was checked by. What a version brings are the fragments with other values in
the columns that the contract reads than the version before; deletes, indexes and compactions bring none, and nothing is
read for them.

Writers of this server check rows before they write them (`incoming_rows`), where bad ones can still be parked. What
they have checked is not read again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError
from msgspec import structs

from tiltyard.contracts.checked_rows import encode_checks
from tiltyard.contracts.checks import COMPARE, validate_checks
from tiltyard.contracts.contract import Clients, Contract, Level, describe_row
from tiltyard.contracts.row_checks import failing_rows, first_failing
from tiltyard.model.branches import Branch
from tiltyard.model.refusals import RefusedError
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_rows import compare_rows, count_rows, field_numbers
from tiltyard.tables.commits.staged_manifests import open_staged, read_manifest
from tiltyard.tables.keys.errors import may_see_rows
from tiltyard.tables.opening import read_fragments
from tiltyard.tables.query.batch_sizes import batch_options

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.contracts.contract import ContractCheck
    from tiltyard.store import NewVersion, TableRecord

BATCH_ROWS = 8192
"""Rows that are checked at a time."""


class ContractError(TableSchemaValidationError):
    """Rows, or a commit, fail a contract: 400, and nothing that a retry helps."""


def check_contract(
    ctx: Context, table: TableRecord, new: NewVersion, content: bytes, *, is_client: bool = False
) -> NewVersion:
    """Return a version to commit as one that its table's contract lets in; `content` is its manifest, which is valid.

    Rows that fail a check which rejects refuse the version, too: here they are written already. `is_client` says that a
    client wrote the files. Raises ContractError, InvalidInputError (a column that the contract reads is gone, or of
    another type).
    """
    if table.contract is None:
        return new
    contract = Contract.from_json(table.contract)
    warned = check_count(contract, count_rows(content)) if contract.count_checks() else Counter[str]()
    numbers = field_numbers(content)
    for column in contract.columns:
        if column not in numbers:
            raise column_error(table, column)
    found = ctx.checked_rows
    if found is not None and found.covers(table.contract):
        return structs.replace(new, checks=encode_checks(warned + found.warned, found.rejected))
    before = read_manifest(ctx, table, Branch(new.branch), new.version - 1, new.naming_scheme)
    columns = frozenset(number for column in contract.columns for number in numbers[column])
    change = compare_rows(before, content, columns, consecutive=before is not None)
    if not change.brought:
        return structs.replace(new, checks=encode_checks(warned, 0))
    if is_client and contract.clients is Clients.REFUSE:
        raise ContractError(
            f"The contract of the table '{table.name}' refuses commits of clients: insert, merge or update through the "
            "server. Nothing was committed."
        )
    staged = open_staged(ctx, table, Branch(new.branch), content)
    warned += check_fragments(ctx, table, contract, staged, change.brought)
    rejected = 0 if found is None else found.rejected
    return structs.replace(new, checks=encode_checks(warned, rejected))


def column_error(table: TableRecord, column: str) -> InvalidInputError:
    """Return the error for a version without a column that the contract reads."""
    assert table.contract is not None
    texts = [each.text for each in Contract.from_json(table.contract).parsed() if column in each.text]
    return InvalidInputError(
        f"The contract of the table '{table.name}' reads the column '{column}' ({'; '.join(texts)}): it keeps its name "
        "until the contract is changed or dropped. Nothing was committed."
    )


def check_count(contract: Contract, rows: int) -> Counter[str]:
    """Check how many rows a version has; return the checks that warn, each once. Raises ContractError."""
    warned = Counter[str]()
    for each in contract.count_checks():
        comparison, number = each.check.arguments
        if COMPARE[comparison](rows, int(number)):
            continue
        if each.level is not Level.WARN:
            raise ContractError(
                f"The contract says {each.text}, and the table would have {rows} rows; nothing was committed."
            )
        warned[each.text] = 1
    return warned


def check_fragments(
    ctx: Context,
    table: TableRecord,
    contract: Contract,
    dataset: lance.LanceDataset,
    fragments: Collection[int] | None = None,
) -> Counter[str]:
    """Check the rows of some fragments, None for all; return how many failed the checks that warn, by their texts.

    Raises ContractError for the first row that fails another check, InvalidInputError for columns of other types.
    """
    checks, warned = contract.row_checks(), Counter[str]()
    if not checks:
        return warned
    try:
        validate_types(checks, dataset.schema)
        for rows in read_rows(dataset, contract.columns, fragments):
            warned += check_table(ctx, table, checks, rows)
    except RefusedError as error:
        raise InvalidInputError(hide_reason(ctx, table, error)) from error
    return warned


def validate_types(checks: Sequence[ContractCheck], schema: pa.Schema) -> None:
    """Raise RefusedError for a check that does not take the type its column has by now.

    Conditions in SQL were tried when they were declared: they say themselves of which rows they cannot be computed.
    """
    validate_checks([each.check for each in checks if each.check.kind != "expect"], schema)


def check_table(ctx: Context, table: TableRecord, checks: Sequence[ContractCheck], rows: pa.Table) -> Counter[str]:
    """Check rows in memory; return how many failed the checks that warn. Raises as `check_fragments` does."""
    warned = Counter[str]()
    for each, failing in zip(checks, failing_rows([each.check for each in checks], rows), strict=True):
        count = pc.sum(failing).as_py() or 0
        if count and each.level is Level.WARN:
            warned[each.text] += count
        elif count:
            raise failed_error(ctx, table, each, rows, failing)
    return warned


def failed_error(
    ctx: Context, table: TableRecord, each: ContractCheck, rows: pa.Table, failing: pa.ChunkedArray
) -> ContractError:
    """Return the error for rows that fail a check, with the first of them for a caller who may see it."""
    values = first_failing(rows, failing, each.check.columns_of(rows.schema))
    row = describe_row(values.items(), may_see_rows(ctx, table))
    return ContractError(
        f"The contract of the table '{table.name}': {each.text} fails for {row}; nothing was committed."
    )


def hide_reason(ctx: Context, table: TableRecord, error: RefusedError) -> str:
    """Return why a check cannot be computed; without Lance's reason, which may quote a row, for who may not see it."""
    if may_see_rows(ctx, table):
        return str(error)
    return (
        f"A check of the contract of the table '{table.name}' cannot be computed on these rows: nothing was committed."
    )


def read_rows(
    dataset: lance.LanceDataset, columns: Sequence[str], fragments: Collection[int] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of some fragments, None for all, in batches. Raises what Lance raises, translated."""
    with lance_errors(dataset):
        options = batch_options(CachedVersion(dataset), list(columns), {})
    return read_fragments(dataset, columns, fragments, min(BATCH_ROWS, options.get("batch_size", BATCH_ROWS)))
