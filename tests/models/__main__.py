"""`python -m tests.models`: check all models and their broken twins; print the table of docs/guarantees.md."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import IO

from tests.models.spin import is_installed, models


def _say(line: str, stream: IO[str] = sys.stdout) -> None:
    stream.write(f"{line}\n")
    stream.flush()


def main() -> int:
    """Check all; return 1 if a promise does not hold, or a twin is not refuted."""
    if not is_installed():
        _say("This needs spin and gcc: scripts/install_services.sh spin", sys.stderr)
        return 1
    failures = 0
    _say("| model | states | broken twin | refuted after |\n|---|---|---|---|")
    for model in models():
        for twin in (None, *model.twins):
            with tempfile.TemporaryDirectory() as folder:
                verdict = model.check(Path(folder), twin)
            failures += bool(verdict.broken) is (twin is None)
            end = f"{verdict.steps:,} steps" if verdict.broken else "" if twin is None else "**not refuted**"
            _say(f"| `{model.name}` | {verdict.states:,} | {f'`{twin}`' if twin else ''} | {end} |")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
