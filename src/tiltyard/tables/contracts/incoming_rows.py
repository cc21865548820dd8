"""Check the rows of a request before they are written, where bad ones can still be parked: the others are written.

Rejected rows are parked in the table's folder `_rejects`, before the commit that leaves them out. Where it fails for
certain they are deleted again, so that who sends the request once more parks them once.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from msgspec import structs

from tiltyard.contracts.checked_rows import FOLDER, ROWS_PER_FILE, CheckedRows, encode_reject
from tiltyard.contracts.contract import Contract, Level
from tiltyard.contracts.row_checks import split_failing
from tiltyard.model.refusals import RefusedError
from tiltyard.storage.errors import lance_errors, may_have_committed
from tiltyard.tables.contracts.enforcement import BATCH_ROWS, check_table, hide_reason, validate_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tiltyard.contracts.contract import ContractCheck
    from tiltyard.tables.rows.write_target import WriteTarget

_MAX_PARKED_BYTES = 8 << 20
"""Bytes of rejected rows that are held in memory: more are a file."""


@dataclass(slots=True)
class IncomingContract:
    """Checks the rows of one request to a table with a contract.

    Checks that read columns which the rows do not have are left to the commit. With `only_rejects`, so are all that
    reject nothing: what a merge makes of its rows is known at its commit alone.
    """

    target: WriteTarget
    found: CheckedRows
    checks: list[ContractCheck]
    _parked: list[bytes] = field(default_factory=list)
    _files: list[str] = field(default_factory=list)
    _name: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def of(
        cls, target: WriteTarget, rows: pa.Schema, table: pa.Schema, *, only_rejects: bool = False
    ) -> IncomingContract | None:
        """Return what checks the rows of a request, by their schema and the table's; None without a contract.

        Raises InvalidInputError for a column of a type that a check does not take.
        """
        if target.record.contract is None:
            return None
        contract = Contract.from_json(target.record.contract)
        checks = contract.row_checks(Level.REJECT) if only_rejects else contract.row_checks()
        here = [each for each in checks if set(each.check.columns_of(table)) <= set(rows.names)]
        try:
            validate_types(here, rows)
        except RefusedError as error:
            raise InvalidInputError(str(error)) from error
        is_complete = len(here) == len(checks) and not only_rejects
        return cls(target, CheckedRows(target.record.contract, is_complete=is_complete), here)

    def take(self, rows: pa.Table) -> pa.Table:
        """Return the rows that may be written; park the rejected ones.

        Raises ContractError for the first row that fails a check which neither rejects nor warns.
        """
        if not rows.num_rows or not self.checks:
            return rows
        parts = [rows.slice(start, BATCH_ROWS) for start in range(0, rows.num_rows, BATCH_ROWS)]
        taken = [self._take(part) for part in parts]
        return rows if all(map(operator.is_, parts, taken)) else pa.concat_tables(taken)

    def take_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that may be written, as they stream in. Raises as `take` does."""
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            taken = self.take(rows)
            if taken is rows:
                yield batch
            else:
                yield from taken.to_batches()

    def _take(self, rows: pa.Table) -> pa.Table:
        ctx, table = self.target.ctx, self.target.record
        others = [each for each in self.checks if each.level is not Level.REJECT]
        rejecting = [each for each in self.checks if each.level is Level.REJECT]
        try:
            taken = self._reject(rejecting, rows) if rejecting else rows
            self.found.warned += check_table(ctx, table, others, taken)
        except RefusedError as error:
            raise InvalidInputError(hide_reason(ctx, table, error)) from error
        return taken

    def _reject(self, checks: Sequence[ContractCheck], rows: pa.Table) -> pa.Table:
        """Park the rows that fail one of these checks; return the others."""
        passing, failed = split_failing([each.check for each in checks], rows)
        self._parked += [encode_reject(reason, row) for reason, row in failed]
        self.found.rejected += len(failed)
        if len(self._parked) >= ROWS_PER_FILE or sum(map(len, self._parked)) >= _MAX_PARKED_BYTES:
            self.park()
        return passing

    def park(self) -> None:
        """Write the rejected rows that are in no file yet. Called before the commit."""
        if not self._parked:
            return
        location = self.target.location
        path = f"{location}/{FOLDER}/{self._name}-{len(self._files)}.jsonl"
        with lance_errors(location):
            self.target.ctx.storage.files(location).write_if_not_exists(path, b"".join(self._parked))
        self.target.ctx.storage.make_durable([path])
        self._files.append(path)
        self._parked.clear()

    def restart(self) -> None:
        """Forget what was found: the rows come once more."""
        self.unpark()
        self.found.rejected = 0
        self.found.warned.clear()

    def unpark(self) -> None:
        """Delete the files of rejected rows of a request that is refused, or is tried again."""
        self._parked.clear()
        if self._files:
            self.target.ctx.storage.delete_files(self._files)
            self._files.clear()


def taken(contract: IncomingContract | None, rows: pa.Table) -> pa.Table:
    """Return the rows in memory that may be written. Raises as `IncomingContract.take` does."""
    return rows if contract is None else contract.take(rows)


@contextmanager
def parking(contract: IncomingContract | None) -> Iterator[None]:
    """Delete the parked rows again if the block's write fails for certain."""
    try:
        yield
    except BaseException as error:
        if contract is not None and not may_have_committed(error):
            contract.unpark()
        raise


def with_found(target: WriteTarget, contract: IncomingContract | None) -> WriteTarget:
    """Return a target whose commit says what was found of its rows; park the rejected ones first."""
    if contract is None:
        return target
    contract.park()
    return replace(target, ctx=structs.replace(target.ctx, checked_rows=contract.found))


@dataclass(slots=True)
class AppendContract:
    """What the contract of its table says of the rows of an append in memory, once they were compared with it."""

    incoming: IncomingContract | None = None

    @property
    def rejected(self) -> int:
        """Return the number of rows that are parked in place of being appended."""
        return 0 if self.incoming is None else self.incoming.found.rejected

    def take(self, target: WriteTarget, rows: pa.Table) -> pa.Table:
        """Return the rows that may be written; the rejected ones are parked. Raises as `IncomingContract.take` does."""
        if self.incoming is not None:  # of an attempt that met another commit
            self.incoming.unpark()
        self.incoming = IncomingContract.of(target, rows.schema, rows.schema)
        if self.incoming is None:
            return rows
        taken = self.incoming.take(rows)
        self.incoming.park()
        return taken
