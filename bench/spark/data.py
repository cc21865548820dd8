"""Rows of (id, 128 × float32, text), and narrow ones of (id, score, text), in Parquet files, made from fixed seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIMENSION = 128
FILE_ROWS = 250_000
GROUP_ROWS = 25_000
SEED = 20_260_101
NARROW = pa.schema([("id", pa.int64()), ("score", pa.float64()), ("text", pa.string())])
SCHEMA = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSION)), ("text", pa.string())])


def parquet(folder: Path, rows: int, schema: pa.Schema = SCHEMA) -> Path:
    """A folder of Parquet files with the columns of SCHEMA or NARROW; made once per work folder."""
    target = folder / f"{'parquet' if schema is SCHEMA else 'narrow'}-{rows}"
    if target.exists():
        return target
    making = target.with_suffix(".making")
    making.mkdir(parents=True, exist_ok=True)
    for first in range(0, rows, FILE_ROWS):
        ids = np.arange(first, min(first + FILE_ROWS, rows))
        texts = [f"row {number}, and some words that make it as long as a caption" for number in ids]
        pq.write_table(_rows(ids, texts, SEED + first, schema), making / f"{first:09}.parquet", GROUP_ROWS)
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


def changes(folder: Path, rows: int, schema: pa.Schema = SCHEMA, share: float = 0.05) -> Path:
    """A file of rows for an upsert: a share of a table's, spread over it, with one in fifty of them new."""
    target = folder / f"{'changes' if schema is SCHEMA else 'narrow-changes'}-{rows}-{share:g}.parquet"
    if not target.exists():
        ids = np.random.default_rng(SEED + 1).choice(rows + rows // 50, round(rows * share), replace=False)
        texts = [f"changed {number}" for number in ids]
        pq.write_table(_rows(ids, texts, SEED + 2, schema), target, row_group_size=GROUP_ROWS)
    return target


def _rows(ids: Any, texts: list[str], seed: int, schema: pa.Schema) -> pa.Table:
    """Rows with these ids and texts, and random vectors or scores."""
    generator = np.random.default_rng(seed)
    if schema is NARROW:
        return pa.table([pa.array(ids), pa.array(generator.random(len(ids))), texts], schema=NARROW)
    numbers = generator.standard_normal(len(ids) * DIMENSION, dtype=np.float32)
    return pa.table(
        [pa.array(ids), pa.FixedSizeListArray.from_arrays(pa.array(numbers), DIMENSION), texts], schema=SCHEMA
    )


def norm(rows: pa.RecordBatch) -> pa.Array:
    """The length of each vector: what the computed column holds."""
    vectors = rows.column(0).flatten().to_numpy().reshape(-1, DIMENSION)
    return pa.array(np.sqrt(np.einsum("ij,ij->i", vectors, vectors)))
