"""Compute the columns of a view besides its query's, for the rows that a refresh writes: in Spark or a server's worker.

Columns of SQL are computed, in a dataset in memory, so that their values come with the rows, in one commit. So are
those of code that belong to the view's definition (`code`, in Spark alone). What other code computes is null until a
backfill: who may refresh a view may not run code that others add to it. So is SQL that reads such a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import lance
import pyarrow as pa

from tiltyard.model.columns.blob_columns import is_stored_as_read
from tiltyard.model.columns.computed_columns import ExpressionDeclaration, read_declaration
from tiltyard.model.columns.lineage import ColumnOrigin, Origins, function_origins, sql_inputs, words_of
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.nested_types import cast_array

_BATCH_ROWS = 8192
FILE_FORMAT: Literal["2.2"] = "2.2"
"""Lance's format of files that holds values of all types."""

ChooseRows = Callable[[lance.LanceDataset, Mapping[str, str]], int]
"""Returns how many rows of a dataset expressions are computed of at once."""


class ColumnCode(Protocol):
    """Code that computes a column of rows that have the columns `inputs`."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the columns that it reads."""

    def compute(self, rows: pa.RecordBatch, counts: ColumnCounts) -> pa.Array:
        """Return a value for each row, and count them. Raises RefusedError."""


@dataclass(slots=True)
class ColumnCounts:
    """Values of columns of code: those that were computed, taken from the view as it was, and failed to be."""

    computed: int = 0
    reused: int = 0
    failed: int = 0


def _choose_rows(_dataset: lance.LanceDataset, _expressions: Mapping[str, str]) -> int:
    return _BATCH_ROWS


@dataclass(frozen=True, slots=True)
class AddedColumns:
    """How the added columns of a view are computed.

    `stages` have expressions or code by the names of their columns; those of a stage may read columns of earlier ones.
    `left_null` are computed columns that a backfill computes.
    """

    view: pa.Schema
    stages: tuple[Mapping[str, str | ColumnCode], ...]
    left_null: tuple[str, ...]

    @classmethod
    def of(
        cls,
        view: pa.Schema,
        is_allowed: Callable[[str], bool] = bool,
        code: Mapping[str, ColumnCode] | None = None,
    ) -> AddedColumns:
        """Return the columns to compute, with the `code` of those that the view's definition has.

        Expressions that are not allowed, and other code, are left to a backfill.
        """
        sources: dict[str, str | ColumnCode] = {}
        inputs: dict[str, list[pa.Field]] = {}
        left_null: list[str] = []
        for field in view:
            declaration = read_declaration(field.metadata)
            if declaration is None:
                continue
            source = (code or {}).get(field.name)
            if source is not None:
                sources[field.name], inputs[field.name] = source, [view.field(name) for name in source.inputs]
            elif isinstance(declaration, ExpressionDeclaration) and is_allowed(declaration.expression):
                sources[field.name] = declaration.expression
                inputs[field.name] = [other for other in _inputs(view, declaration) if other.name != field.name]
            else:
                left_null.append(field.name)
        for name in [*sources]:
            fields = [view.field(name), *inputs[name]] if isinstance(sources[name], str) else inputs[name]
            if not all(is_stored_as_read(field) for field in fields):
                left_null.append(name)
        return cls(view, *_stages(view, sources, inputs, left_null))

    def origins(self, made: Origins) -> Origins:
        """Return what these columns are made from, for the lineage; `made` has that of the query's columns."""
        known = {origin.column: origin.inputs for origin in made}
        for name, source in ((name, source) for stage in self.stages for name, source in stage.items()):
            if isinstance(source, str):
                read = sql_inputs(source, (other for other in self.view.names if other != name))
            else:
                declaration = read_declaration(self.view.field(name).metadata)
                identity = "" if declaration is None else declaration.identity
                read = function_origins(self.view.names, source.inputs, [(name, identity)])[0].inputs
            inputs = (each.then(step.how, step.code) for step in read for each in known.get(step.column, ()))
            known[name] = tuple(dict.fromkeys(inputs))
        return tuple(ColumnOrigin(name, known[name]) for stage in self.stages for name in stage)

    def figures(self) -> dict[str, str]:
        """Return what a refresh says of columns that it left null."""
        return {"left_null": ",".join(self.left_null)} if self.left_null else {}

    def add(
        self,
        rows: Iterable[pa.RecordBatch],
        choose_rows: ChooseRows = _choose_rows,
        counts: ColumnCounts | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of a view's query with all columns of the view. Raises RefusedError if one cannot be computed."""
        for stage in self.stages:
            expressions = {name: source for name, source in stage.items() if isinstance(source, str)}
            code = {name: source for name, source in stage.items() if not isinstance(source, str)}
            rows = self._compute(expressions, rows, choose_rows) if expressions else rows
            rows = self._call(code, rows, counts or ColumnCounts()) if code else rows
        for batch in rows:
            names = batch.schema.names
            columns = [
                batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
                for field in self.view
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.view)

    def _call(
        self, code: Mapping[str, ColumnCode], rows: Iterable[pa.RecordBatch], counts: ColumnCounts
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns that code computes."""
        for batch in rows:
            if not batch.num_rows:
                continue
            known = [name for name in batch.schema.names if name not in code]
            added = [source.compute(batch, counts) for source in code.values()]
            fields = [*(batch.schema.field(name) for name in known), *(self.view.field(name) for name in code)]
            columns = [*(batch.column(name) for name in known), *added]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _compute(
        self, expressions: Mapping[str, str], rows: Iterable[pa.RecordBatch], choose_rows: ChooseRows
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns of expressions, in batches that are no larger."""
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
        words = words_of(" ".join(expressions.values()))
        missing = [field for field in self.view if field.name not in rows.schema.names]
        whole = pa.table(
            [*rows.columns, *(pa.nulls(rows.num_rows, field.type) for field in missing)],
            [*rows.schema.names, *(field.name for field in missing)],
        )
        read = [name for name in whole.schema.names if words_of(name) <= words] or whole.schema.names[:1]
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


def _stages(
    view: pa.Schema,
    sources: Mapping[str, str | ColumnCode],
    inputs: Mapping[str, list[pa.Field]],
    left_null: list[str],
) -> tuple[tuple[Mapping[str, str | ColumnCode], ...], tuple[str, ...]]:
    """Return the columns in stages, and those that are left null: with those of `left_null`, what reads them.

    Of code, columns that read each other are left null: only a changed declaration makes such ones.
    """
    stages: list[dict[str, str | ColumnCode]] = []
    left = set(left_null)
    done = {field.name for field in view if field.name not in sources and field.name not in left}
    waiting = [name for name in sources if name not in left]
    while waiting:
        if lost := [name for name in waiting if any(field.name in left for field in inputs[name])]:
            left.update(lost)
        else:
            ready = [name for name in waiting if all(field.name in done for field in inputs[name])]
            if not ready:  # a word of an expression may be a function, and no column
                ready = [name for name in waiting if isinstance(sources[name], str)][:1]
            if not ready:
                left.update(waiting)
            stages += [{name: sources[name] for name in ready}] if ready else []
            done.update(ready)
        waiting = [name for name in waiting if name not in done and name not in left]
    return tuple(stages), tuple(name for name in view.names if name in left)


def _inputs(view: pa.Schema, declaration: ExpressionDeclaration) -> list[pa.Field]:
    """Return the columns whose names are words of an expression, in any case: those that it may read."""
    words = words_of(declaration.expression)
    return [field for field in view if words_of(field.name) <= words]
