"""Manifests that writers stage for versions of a table, made by Lance once, and the files that they name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import lance
import pyarrow as pa

from tiltyard.storage.manifests.manifest_format import NamingScheme, manifest_name

if TYPE_CHECKING:
    from collections.abc import Sequence


class Manifests:
    """Manifests by writer and version. Version n of a model is n + 1 of a table, whose first one is there."""

    def __init__(self, folder: Path, writers: Sequence[int], versions: int) -> None:
        self._folder = folder
        self._writers = writers
        base = folder / "base"
        lance.write_dataset(pa.table({"writer": [0]}), base)
        for writer in writers:
            shutil.copytree(base, folder / str(writer))
            for _ in range(versions):
                lance.dataset(folder / str(writer)).insert(pa.table({"writer": [writer]}))
        self._by_content = {
            self.path(writer, version).read_bytes(): writer for writer in writers for version in range(1, versions + 1)
        }

    def lay_out(self, location: Path) -> None:
        """Make the first version of a table, with all files that later ones may name."""
        shutil.copytree(self._folder / "base", location, copy_function=os.link)
        for writer in self._writers:
            for part in ("data", "_transactions"):
                source = self._folder / str(writer) / part
                shutil.copytree(source, location / part, copy_function=_link, dirs_exist_ok=True)

    def path(self, writer: int, version: int) -> Path:
        return self._folder / str(writer) / "_versions" / final_name(version)

    def stage(self, writer: int, version: int, location: Path) -> str:
        """Stage a writer's manifest in a table's folder; return its path."""
        staged = location / "_versions" / f"{final_name(version)}-{uuid4()}"
        shutil.copy(self.path(writer, version), staged)
        return str(staged)

    def writer(self, location: Path, version: int) -> int:
        """Return whose manifest a version of a table has in storage; 0 if there is none."""
        final = location / "_versions" / final_name(version)
        return self._by_content[final.read_bytes()] if final.exists() else 0


def final_name(version: int) -> str:
    """Return the name of the manifest of a version of a model."""
    return manifest_name(version + 1, NamingScheme.V2)


def _link(source: str, target: str) -> None:
    if not Path(target).exists():  # several writers have the files of the first version
        os.link(source, target)
