"""The column that a backfill adds itself: its code is tried first, and it goes again if nothing came into it.

Dropped again, the table has the columns that it had before the run. A run that is resumed adds the column anew. What a
checkpoint has committed stays, as it does in a column that was there already: the next driver goes on from it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.pipeline.backfill.tasks import Maker, Trial
from tiltyard.pipeline.runs import Run, RunCanceledError
from tiltyard.pipeline.spark_tasks import call, run_tasks
from tiltyard.pipeline.version_diff import field_ids
from tiltyard.pipeline.writing.commit import OvertakenError, StrictTable

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger("tiltyard.pipeline")

TRIAL_ROWS = 1 << 20
"""How many rows are looked through, at most, for some that the condition chooses: to try the code on."""

_KEPT = "column"
_TRIES = 20


def try_code(run: Run, spark: SparkSession, strict: StrictTable, maker: Maker, where: str | None) -> None:
    """Load the code in a task, and call it with a few rows; nothing is written. Raises RefusedError."""
    dataset = strict.latest()
    trial = Trial(strict.table.place(), int(dataset.version), _first_fragments(dataset), where, maker)
    run_tasks(spark, run, call, [trial], name=f"backfill {maker.field.name}: try")


def _first_fragments(dataset: lance.LanceDataset) -> tuple[int, ...]:
    found: list[int] = []
    rows = 0
    for one in dataset.get_fragments():
        if rows >= TRIAL_ROWS:
            break
        found.append(one.fragment_id)
        rows += one.metadata.num_rows
    return tuple(found)


@dataclass(slots=True)
class NewColumn:
    """A column of this name that the run has added, by the ids of its `fields`; None if it was there before."""

    run: Run
    strict: StrictTable
    name: str
    fields: frozenset[int] | None = None

    @classmethod
    def of(cls, run: Run, strict: StrictTable, name: str) -> NewColumn:
        """What an earlier driver of this run has added, if one did."""
        told: Sequence[int] | None = json.loads(run.kept().get(_KEPT, "null"))
        return cls(run, strict, name, None if told is None else frozenset(told))

    def add(self, field: pa.Field) -> None:
        """Add the column, without values. Raises RunCanceledError, what Lance raises."""
        self.run.check()
        self.strict.table.dataset().add_columns(field)
        self.fields = field_ids(self.strict.latest(), self.name)
        self.run.keep(_KEPT, json.dumps(sorted(self.fields)))

    @contextmanager
    def dropped_if_empty(self) -> Iterator[None]:
        """Drop the column again if what is done here fails, or is canceled, before any value came into it."""
        try:
            yield
        except ServiceUnavailableError:
            raise  # the job is tried again; without the catalog nothing can be dropped
        except Exception:
            self._drop_if_empty()
            raise

    def _drop_if_empty(self) -> None:
        if self.fields is None:
            return
        try:
            if self._drop():
                with suppress(RunCanceledError):  # a canceled run is not resumed
                    self.run.keep(_KEPT, "null")
        except Exception as error:  # noqa: BLE001  # why the job failed is what has to be told
            log.warning("the column '%s', which holds no values, was not dropped again: %s", self.name, error)

    def _drop(self) -> bool:
        """Drop the column if it is this run's and holds no values, on top of what was looked at; whether it is gone."""
        for _ in range(_TRIES):
            dataset = self.strict.latest()
            if field_ids(dataset, self.name) != self.fields or _has_values(dataset, self.name, self.fields):
                return False
            try:
                self.strict.change(dataset, lambda seen=dataset: seen.drop_columns([self.name]))  # type: ignore[misc]
            except OvertakenError:
                continue
            return True
        return False


def _has_values(dataset: lance.LanceDataset, name: str, fields: frozenset[int]) -> bool:
    """Whether a column has a value in any row; one that no file holds has none."""
    held = any(not fields.isdisjoint(file.fields) for one in dataset.get_fragments() for file in one.metadata.files)
    return (
        held and dataset.scanner(columns=[], filter=f"`{name}` IS NOT NULL", limit=1, with_row_id=True).count_rows() > 0
    )
