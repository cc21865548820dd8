"""Compute the columns that were added to a view, for the rows that a refresh writes: in Spark or a server's worker.

Columns of SQL are computed, in a dataset in memory, so that their values come with the rows, in one commit. What code
computes is null until a backfill: who may refresh a view may not run code over it. So is SQL that reads such a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import lance
import pyarrow as pa

from tiltyard.model.columns.blob_columns import is_stored_as_read
from tiltyard.model.columns.computed_columns import ExpressionDeclaration, read_declaration
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.nested_types import cast_array

_BATCH_ROWS = 8192
FILE_FORMAT: Literal["2.2"] = "2.2"
"""Lance's format of files that holds values of all types."""
_WORD = re.compile(r"\w+")

ChooseRows = Callable[[lance.LanceDataset, Mapping[str, str]], int]
"""Returns how many rows of a dataset expressions are computed of at once."""


def _choose_rows(_dataset: lance.LanceDataset, _expressions: Mapping[str, str]) -> int:
    return _BATCH_ROWS


@dataclass(frozen=True, slots=True)
class AddedColumns:
    """How the added columns of a view are computed.

    `stages` have expressions by the names of their columns; those of a stage may read columns of earlier ones.
    `left_null` are computed columns that a backfill computes.
    """

    view: pa.Schema
    stages: tuple[Mapping[str, str], ...]
    left_null: tuple[str, ...]

    @classmethod
    def of(cls, view: pa.Schema, is_allowed: Callable[[str], bool] = bool) -> AddedColumns:
        """Return the added columns of a view; expressions that are not allowed are left to a backfill."""
        stages: list[dict[str, str]] = []
        place: dict[str, int] = {}
        left_null: list[str] = []
        for field in view:
            declaration = read_declaration(field.metadata)
            if declaration is None:
                continue
            inputs = _inputs(view, declaration) if isinstance(declaration, ExpressionDeclaration) else []
            if (
                not isinstance(declaration, ExpressionDeclaration)
                or not is_allowed(declaration.expression)
                or not all(is_stored_as_read(column) and column.name not in left_null for column in (*inputs, field))
            ):
                left_null.append(field.name)
                continue
            stage = 1 + max((place.get(column.name, -1) for column in inputs), default=-1)
            place[field.name] = stage
            stages += [{} for _ in range(stage + 1 - len(stages))]
            stages[stage][field.name] = declaration.expression
        return cls(view, tuple(stages), tuple(left_null))

    def figures(self) -> dict[str, str]:
        """Return what a refresh says of columns that it left null."""
        return {"left_null": ",".join(self.left_null)} if self.left_null else {}

    def add(self, rows: Iterable[pa.RecordBatch], choose_rows: ChooseRows = _choose_rows) -> Iterator[pa.RecordBatch]:
        """Yield rows of a view's query with all columns of the view. Raises RefusedError if an expression fails."""
        for stage in self.stages:
            rows = self._compute(stage, rows, choose_rows)
        for batch in rows:
            names = batch.schema.names
            columns = [
                batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
                for field in self.view
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.view)

    def _compute(
        self, expressions: Mapping[str, str], rows: Iterable[pa.RecordBatch], choose_rows: ChooseRows
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns of a stage, in batches that are no larger."""
        for batch in rows:
            known = [name for name in batch.schema.names if name not in expressions]
            start = 0
            for values in self._evaluate(expressions, batch.select(known), choose_rows) if batch.num_rows else ():
                part = batch.select(known).slice(start, values.num_rows)
                start += values.num_rows
                fields = [*part.schema, *(self.view.field(name) for name in expressions)]
                added = [cast_array(values.column(name), self.view.field(name).type) for name in expressions]
                yield pa.RecordBatch.from_arrays([*part.columns, *added], schema=pa.schema(fields))

    def _evaluate(
        self, expressions: Mapping[str, str], rows: pa.RecordBatch, choose_rows: ChooseRows
    ) -> Iterator[pa.RecordBatch]:
        words = _words(" ".join(expressions.values()))
        missing = [field for field in self.view if field.name not in rows.schema.names]
        whole = pa.table(
            [*rows.columns, *(pa.nulls(rows.num_rows, field.type) for field in missing)],
            [*rows.schema.names, *(field.name for field in missing)],
        )
        read = [name for name in whole.schema.names if _words(name) <= words] or whole.schema.names[:1]
        try:
            copy = lance.write_dataset(whole.select(read), "memory://", data_storage_version=FILE_FORMAT)
            yield from copy.scanner(
                columns=dict(expressions), batch_size=choose_rows(copy, expressions), scan_in_order=True
            ).to_batches()
        except (OSError, ValueError, RuntimeError) as error:  # all of them are how Lance says that SQL fails
            raise RefusedError(
                f"{', '.join(expressions)}: SQL that computes an added column fails on a row of the view: "
                f"{str(error).split(', /')[0][:300]}. Drop the column, and add it with SQL that computes all rows."
            ) from error


def _inputs(view: pa.Schema, declaration: ExpressionDeclaration) -> list[pa.Field]:
    """Return the columns whose names are words of an expression, in any case: those that it may read."""
    words = _words(declaration.expression)
    return [field for field in view if _words(field.name) <= words]


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(text))
