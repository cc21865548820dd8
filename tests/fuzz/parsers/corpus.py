"""The inputs that are kept of each target, in the tree: one file a target, one input a line, as Python writes bytes."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
MAX_CORPUS_BYTES = 10_000
"""Bytes of the inputs of one target, as they are written; those of faults are kept all the same."""


def read_corpus(name: str) -> list[bytes]:
    """Return the inputs of a target, in the order of the file."""
    path = FOLDER / f"{name}.txt"
    return [ast.literal_eval(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_corpus(name: str, inputs: list[bytes]) -> None:
    """Keep the inputs of a target, each once, sorted so that changes are easy to see."""
    unique = sorted(set(inputs), key=lambda each: (len(each), each))
    (FOLDER / f"{name}.txt").write_text("".join(f"{written(each)}\n" for each in unique))


def written(data: bytes) -> str:
    """Return an input as a line of a corpus."""
    return repr(data)
