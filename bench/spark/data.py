"""Rows of (id, 128 × float32, text) in Parquet files, made from fixed seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIMENSION = 128
FILE_ROWS = 250_000
GROUP_ROWS = 25_000
SEED = 20_260_101
SCHEMA = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSION)), ("text", pa.string())])


def parquet(folder: Path, rows: int) -> Path:
    """A folder of Parquet files; made once per work folder."""
    target = folder / f"parquet-{rows}"
    if target.exists():
        return target
    making = target.with_suffix(".making")
    making.mkdir(parents=True, exist_ok=True)
    for first in range(0, rows, FILE_ROWS):
        pq.write_table(_rows(first, min(FILE_ROWS, rows - first)), making / f"{first:09}.parquet", GROUP_ROWS)
    making.rename(target)
    return target


def repeated(folder: Path, rows: int, times: int) -> Path:
    """So many times the same files, linked: more rows without more space."""
    source, target = parquet(folder, rows), folder / f"parquet-{rows}x{times}"
    if not target.exists():
        making = target.with_suffix(".making")
        making.mkdir()
        for number in range(times):
            for file in source.iterdir():
                (making / f"{number:03}-{file.name}").hardlink_to(file)
        making.rename(target)
    return target


def _rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    numbers = np.random.default_rng(SEED + first).standard_normal(count * DIMENSION, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), DIMENSION)
    texts = [f"row {number}, and some words that make it as long as a caption" for number in ids]
    return pa.table([pa.array(ids), vectors, pa.array(texts)], SCHEMA)


def changes(folder: Path, rows: int) -> Path:
    """A file of rows for an upsert: a twentieth of a table's, spread over it, with one in fifty of them new."""
    target = folder / f"changes-{rows}.parquet"
    if not target.exists():
        generator = np.random.default_rng(SEED + 1)
        ids = generator.choice(rows + rows // 50, rows // 20, replace=False)
        values = pa.array(generator.random(len(ids) * DIMENSION, dtype=np.float32))
        vectors = pa.FixedSizeListArray.from_arrays(values, DIMENSION)
        texts = [f"changed {number}" for number in ids]
        pq.write_table(pa.table([pa.array(ids), vectors, texts], schema=SCHEMA), target, row_group_size=GROUP_ROWS)
    return target


def norm(rows: pa.RecordBatch) -> pa.Array:
    """The length of each vector: what the computed column holds."""
    vectors = rows.column(0).flatten().to_numpy().reshape(-1, DIMENSION)
    return pa.array(np.sqrt(np.einsum("ij,ij->i", vectors, vectors)))
