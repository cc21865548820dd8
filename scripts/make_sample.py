"""Compute the embeddings of the bundled sample, with a model that lies in its package: nothing is fetched.

    python scripts/make_sample.py [--check]

Reads src/tiltyard/sample/films.jsonl and writes vectors.npy beside it. With --check it compares what is there.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from tiltyard.sample.embedding import compute
from tiltyard.sample.films import TEXTS, VECTORS, embedded_text, read_facts, read_vectors

TOLERANCE = 1e-3
"""Between two processors' sums, and of numbers of 16 bits."""


def main() -> None:
    """Write the vectors, or compare them."""
    parser = argparse.ArgumentParser(description="Compute the embeddings of the bundled sample.")
    parser.add_argument("--check", action="store_true", help="only compare: status 1 if they are not current")
    is_check = parser.parse_args().check
    vectors = compute([*map(embedded_text, read_facts()), *TEXTS])
    if not is_check:
        np.save(VECTORS, vectors.astype(np.float16))
    elif vectors.shape != read_vectors().shape or not np.allclose(vectors, read_vectors(), atol=TOLERANCE):
        sys.exit(f"{VECTORS.name} is not current: run `make sample`.")


if __name__ == "__main__":
    main()
