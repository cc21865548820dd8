"""What is known of an import that has not ended: kept here, so that the same command goes on where it was cut."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tiltyard.runtime.durability import replace_file


@dataclass(slots=True)
class ImportState:
    """An import: the server's id of its upload, the parts that have arrived, whether its table was declared for it."""

    upload_id: str
    is_declared: bool
    done: list[str] = field(default_factory=list)
    rows: int = 0
    rejected: int = 0


class ImportFile:
    """The file of one import, named by what it reads and writes: another source, or another table, has another file."""

    def __init__(self, *identity: str) -> None:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self._path = Path(base) / "tiltyard" / "imports" / f"{digest[:32]}.json"

    def read(self) -> ImportState | None:
        """Return the state; None where there is none that can be read: then the import begins anew."""
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
            return ImportState(**content)
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write(self, state: ImportState) -> None:
        """Replace the file atomically and durably. Raises OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(str(self._path), json.dumps(asdict(state)).encode())

    def remove(self) -> None:
        """Remove the file. Idempotent."""
        self._path.unlink(missing_ok=True)


def part_key(pieces: Iterable[str]) -> str:
    """Return the key of a part of an import, from those of its pieces: sent twice, the part counts once."""
    return hashlib.sha256(json.dumps(list(pieces)).encode()).hexdigest()[:32]
