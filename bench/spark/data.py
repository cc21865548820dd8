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
