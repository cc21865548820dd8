"""Histories of a table on storage, each step also done on a model of its rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import lance
import pyarrow as pa

STABLE, KEYED, PLAIN = "stable row ids", "a key", "neither"
Row = dict[str, Any]


@dataclass
class History:
    """A table, and a model of each of its versions: its rows by what tells them apart."""

    kind: str
    dataset: lance.LanceDataset
    models: dict[int, dict[int, Row]] = field(default_factory=dict)
    branch: str | None = None
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def begin(cls, kind: str, folder: str) -> History:
        """Write 30 rows in files of 10."""
        history = cls(kind, None)
        rows = [history.row(number) for number in range(30)]
        history.dataset = lance.write_dataset(
            table(rows), folder, max_rows_per_file=10, enable_stable_row_ids=kind == STABLE
        )
        history.models[1] = history.identify(rows)
        return history

    def row(self, number: int) -> Row:
        """Return a row whose values no other row ever had."""
        value = next(self.numbers)
        return {"id": number, "v": float(value), "tags": [str(value)] * (value % 3), "vector": [float(value), 0.0]}

    def identify(self, rows: list[Row]) -> dict[int, Row]:
        """Return new rows by key, or by a number that none had: Lance gives rows that replace all others new ids."""
        return {row["id"] if self.kind == KEYED else -next(self.numbers): row for row in rows}

    @property
    def rows(self) -> dict[int, Row]:
        """Return the rows of the newest version."""
        return self.models[max(self.models)]

    def do(self, step: str, number: int) -> None:
        """Do a step, on the table and on the model."""
        before = int(self.dataset.version)
        rows = {name: dict(row) for name, row in self.rows.items()}
        chosen = [name for name, row in rows.items() if row["id"] % 7 == number]
        changed = getattr(self, step.replace(" ", "_"))(number, rows, chosen)
        for version in range(before + 1, int(self.dataset.version)):  # a compaction reserves its fragments first
            self.models[version] = self.rows
        if int(self.dataset.version) > before:
            self.models[int(self.dataset.version)] = changed
        assert sorted(map(str, changed.values())) == sorted(map(str, self.dataset.to_table().to_pylist()))

    def append(self, number: int, rows: dict[int, Row], _: list[int]) -> dict[int, Row]:
        new = [self.fill(self.row(1000 + next(self.numbers))) for _ in range(number + 1)]
        self.dataset.insert(table(new, self.dataset.schema))
        return rows | self.identify(new)

    def update(self, number: int, rows: dict[int, Row], chosen: list[int]) -> dict[int, Row]:
        value = float(next(self.numbers))
        self.dataset.update({"v": str(value)}, where=f"id % 7 = {number}")
        return rows | {name: {**rows[name], "v": value} for name in chosen}

    def delete(self, number: int, rows: dict[int, Row], chosen: list[int]) -> dict[int, Row]:
        self.dataset.delete(f"id % 7 = {number}")
        return {name: row for name, row in rows.items() if name not in chosen}

    def merge(self, number: int, rows: dict[int, Row], chosen: list[int]) -> dict[int, Row]:
        changed = {name: self.fill(self.row(rows[name]["id"])) for name in chosen}
        new = [self.fill(self.row(2000 + next(self.numbers))) for _ in range(number)]
        if source := [*changed.values(), *new]:
            builder = self.dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            builder.execute(table(source, self.dataset.schema))
        return rows | changed | self.identify(new)

    def overwrite(self, number: int, rows: dict[int, Row], chosen: list[int]) -> dict[int, Row]:
        new = [row if row["id"] % 7 > number else self.fill(self.row(row["id"])) for row in rows.values()]
        place = self.dataset
        self.dataset = lance.write_dataset(table(new, place.schema), place, mode="overwrite")
        return self.identify(new)

    def compact(self, number: int, rows: dict[int, Row], _: list[int]) -> dict[int, Row]:
        self.dataset.optimize.compact_files(target_rows_per_fragment=15 + 5 * number, materialize_deletions_threshold=0)
        return rows

    def restore(self, number: int, rows: dict[int, Row], _: list[int]) -> dict[int, Row]:
        version = sorted(self.models)[number % len(self.models)]
        old = self.dataset.checkout_version((self.branch, version) if self.branch else version)
        old.restore()
        self.dataset = self.dataset.checkout_version((self.branch, None)) if self.branch else lance.dataset(old.uri)
        return self.models[version]

    def add_column(self, number: int, rows: dict[int, Row], _: list[int]) -> dict[int, Row]:
        name = f"c{next(self.numbers)}"
        self.dataset.add_columns({name: "v * 2"} if number else pa.field(name, pa.float64()))  # the latter: nulls
        return {key: {**row, name: row["v"] * 2 if number else None} for key, row in rows.items()}

    def drop_column(self, number: int, rows: dict[int, Row], _: list[int]) -> dict[int, Row]:
        names = [name for name in self.dataset.schema.names if name.startswith("c")]
        if not names:
            return rows
        self.dataset.drop_columns([names[number % len(names)]])
        return {
            key: {name: value for name, value in row.items() if name != names[number % len(names)]}
            for key, row in rows.items()
        }

    def create_branch(self, number: int, rows: dict[int, Row], _: list[int]) -> dict[int, Row]:
        """Go on with a branch, once: its feed begins where it does."""
        if self.branch is None:
            self.branch = "branch"
            self.dataset.create_branch(self.branch)
            self.dataset = self.dataset.checkout_version((self.branch, None))
            self.models = {int(self.dataset.version): rows}
        return rows

    def fill(self, row: Row) -> Row:
        """Return a row with nulls in the columns that were added."""
        return {name: row.get(name) for name in self.dataset.schema.names}


def table(rows: list[Row], schema: pa.Schema | None = None) -> pa.Table:
    """Return rows as Arrow has them."""
    fields = [("id", pa.int64()), ("v", pa.float64()), ("tags", pa.list_(pa.string())),
              ("vector", pa.list_(pa.float32(), 2))]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema or pa.schema(fields))
