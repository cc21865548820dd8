"""Bring a file of films into a table by the pipeline in films.yaml, and print how many there are.

    python examples/film_pipeline.py FILE URL

A process of its own: Spark forks its workers, which the libraries of clients dislike.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lance_namespace.errors import LanceNamespaceError

import tiltyard


def main() -> None:
    """Run the pipeline on a server."""
    file, url = sys.argv[1:]
    try:
        run = tiltyard.connect(url).run_pipeline(Path(__file__).with_name("films.yaml"), {"films": file})
    except LanceNamespaceError as error:
        sys.exit(str(error))
    print(run.rows)


if __name__ == "__main__":
    main()
