"""Compute which rows of a version are in which split, and the digest by which that is the same years later.

The rows are named by their offsets in the version, which never change. About 40 bytes for each row that the filter
leaves are in memory meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError, InvalidTableStateError

from tiltyard.lake.errors import naming
from tiltyard.lake.training.splits import NO_SPLIT, assign_by_class, assign_splits, hash_units, is_sampled, mixed_units

if TYPE_CHECKING:
    import lance
    from numpy.typing import NDArray

    from tiltyard.lake.training.definition import Definition

OFFSET, ROW_ID = "_rowoffset", "_rowid"
MAX_CLASSES = 10_000
"""Values that the column of `stratify` has."""
MAX_COUNTED_CLASSES = 100
"""Classes up to which the manifest counts the rows of each."""
_ROW = np.dtype([("split", "<i1"), ("row", "<u8"), ("unit", "<u8")])


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of a version by their offsets, sorted by split and then by offset, with the hashes of their units."""

    rows: NDArray[np.uint64]
    splits: NDArray[np.int8]
    units: NDArray[np.uint64]
    counts: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]] | None

    def digest(self, facts: Mapping[str, Any]) -> str:
        """Return the SHA-256 of the facts as JSON, and of all rows: split, offset and unit, as 1 + 8 + 8 bytes each."""
        hashed = hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=False).encode())
        for start in range(0, len(self.rows), 1 << 16):
            part = np.empty(len(self.rows[start : start + (1 << 16)]), _ROW)
            for name, values in (("split", self.splits), ("row", self.rows), ("unit", self.units)):
                part[name] = values[start : start + (1 << 16)]
            hashed.update(part.tobytes())
        return hashed.hexdigest()


def identity_columns(dataset: lance.LanceDataset, by: Sequence[str], key: Sequence[str]) -> tuple[str, ...]:
    """Return the columns whose values are the unit of a row: `by`, else the primary key, else the stable row id.

    Raises InvalidInputError for a table whose rows have nothing that stays.
    """
    if by or key:
        return tuple(by or key)
    if dataset.has_stable_row_ids:
        return (ROW_ID,)
    raise InvalidInputError(
        "by is left out, and the table has neither a primary key nor stable row ids, so that nothing of a row stays: "
        "name columns by which rows are assigned to splits."
    )


def select_rows(
    dataset: lance.LanceDataset, definition: Definition, units: Sequence[str], report: Callable[[int], None]
) -> Selection:
    """Choose rows by the filter and the weights, and assign their units to splits.

    `report` is called with the number of rows read so far, and may raise. Raises InvalidInputError for nulls in a
    column that decides, weights that are none, and units of several classes.
    """
    read = _read_columns(dataset, definition, units, report)
    hashes = hash_units([read[name] for name in units], definition.seed)
    classes = _encode_classes(read, definition)
    kept = _sample(hashes, read, classes, definition)
    offsets = read[OFFSET].to_numpy()[kept].astype(np.uint64)
    hashes, numbers = hashes[kept], None if classes is None else classes[0][kept]
    if numbers is None:
        splits = assign_splits(hashes, definition.splits)
    else:
        _check_classes(hashes, numbers, definition)
        splits = assign_by_class(hashes, numbers, definition.splits)
    order = np.lexsort((offsets, splits))
    order = order[np.searchsorted(splits[order], NO_SPLIT, side="right") :]
    names = list(definition.splits)
    counts = np.bincount(splits[order], minlength=len(names)).tolist()
    by_class = None
    if classes is not None and numbers is not None and len(classes[1]) <= MAX_COUNTED_CLASSES:
        by_class = {
            name: {text: int(np.sum((splits == number) & (numbers == code))) for code, text in enumerate(classes[1])}
            for number, name in enumerate(names)
        }
    return Selection(offsets[order], splits[order], hashes[order], dict(zip(names, counts, strict=True)), by_class)


def digest_files(dataset: lance.LanceDataset) -> str:
    """Return a digest of which files the rows of a version are in, and which of their rows are deleted.

    Files are written once, under names that no other file ever has: so the same names are the same rows.
    """
    fragments = []
    for fragment in dataset.get_fragments():
        facts = fragment.metadata.to_json()
        files = [[file["path"], file["file_size_bytes"], file["fields"]] for file in facts["files"]]
        deletions = facts["deletion_file"] or {}
        deleted = [deletions.get(name) for name in ("read_version", "id", "num_deleted_rows")]
        fragments.append([facts["id"], facts["physical_rows"], files, deleted])
    return hashlib.sha256(json.dumps(fragments).encode()).hexdigest()


def _read_columns(
    dataset: lance.LanceDataset, definition: Definition, units: Sequence[str], report: Callable[[int], None]
) -> dict[str, pa.Array]:
    """Return the columns that decide, with offsets, of the rows that the filter leaves."""
    weights = (definition.weights,) if isinstance(definition.weights, str) else ()
    stratify = (definition.stratify,) if definition.stratify else ()
    names = list(dict.fromkeys((*units, *stratify, *weights, OFFSET)))
    batches, rows = [], 0
    with naming("filter"):
        for batch in dataset.scanner(columns=names, filter=definition.filter).to_batches():
            rows += batch.num_rows
            report(rows)
            batches.append(batch)
    schema = batches[0].schema if batches else dataset.scanner(columns=names).projected_schema
    table = pa.Table.from_batches(batches, schema)
    for argument, columns in {"by": units, "stratify": stratify, "weights": weights}.items():
        for name in columns:
            if nulls := table[name].null_count:
                raise InvalidInputError(
                    f"{argument} names '{name}', which is null in {nulls} rows: leave these out by a filter."
                )
    return {name: _whole(table[name]) for name in names}


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return the values in one piece, with offsets of 64 bits where these are of text or bytes."""
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    combined = column.cast(large.get(column.type, column.type)).combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _encode_classes(read: Mapping[str, pa.Array], definition: Definition) -> tuple[NDArray[np.int64], list[str]] | None:
    """Return the number of each row's class, and the classes as text; None where there are none."""
    if definition.stratify is None:
        return None
    values = read[definition.stratify]
    encoded = values if pa.types.is_dictionary(values.type) else pc.dictionary_encode(values)
    classes = [str(value) for value in encoded.dictionary.to_pylist()]
    if len(classes) > MAX_CLASSES:
        raise InvalidInputError(
            f"stratify is '{definition.stratify}', which has {len(classes)} values: it may have {MAX_CLASSES}."
        )
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), classes


def _sample(
    hashes: NDArray[np.uint64],
    read: Mapping[str, pa.Array],
    classes: tuple[NDArray[np.int64], list[str]] | None,
    definition: Definition,
) -> NDArray[np.bool_]:
    """Return which rows are kept by their weights."""
    if definition.weights is None:
        return np.ones(len(hashes), np.bool_)
    if isinstance(definition.weights, str):
        weights = read[definition.weights].to_numpy(zero_copy_only=False).astype(np.float64)
        wrong = np.flatnonzero(~((weights >= 0) & (weights <= 1)))
        if len(wrong):
            raise InvalidInputError(
                f"weights is '{definition.weights}', which is {weights[wrong[0]]:g} in a row: a weight is the share of "
                "such rows that are in the set, from 0 to 1."
            )
        return is_sampled(hashes, weights)
    assert classes is not None  # weights of classes come with stratify
    numbers, names = classes
    if unknown := [name for name in definition.weights if name not in names]:
        raise InvalidInputError(f"weights has a weight of '{unknown[0]}', and no row has that {definition.stratify}.")
    of_class = np.array([definition.weights.get(name, 1.0) for name in names])
    return is_sampled(hashes, of_class[numbers])


def _check_classes(hashes: NDArray[np.uint64], numbers: NDArray[np.int64], definition: Definition) -> None:
    if definition.by and mixed_units(hashes, numbers) >= 0:
        raise InvalidInputError(
            f"stratify is '{definition.stratify}', and rows of one {', '.join(definition.by)} have several: such rows "
            "cannot be in one split and keep the shares of each class; leave stratify out."
        )


def check_not_empty(counts: Mapping[str, int]) -> None:
    """Raise InvalidInputError for a split without rows."""
    if empty := [name for name, count in counts.items() if not count]:
        raise InvalidInputError(f"The split '{empty[0]}' would have no rows: there are too few for its fraction.")


def check_same(what: str, recorded: object, computed: object) -> None:
    """Raise InvalidTableStateError where what a manifest has recorded is not what is there."""
    if recorded != computed:
        raise InvalidTableStateError(
            f"{what} is {computed}, and the manifest has {recorded}: the set is not what it was."
        )
