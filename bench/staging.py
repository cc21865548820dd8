"""Manifests that wait to be committed: copies of one table's, laid into new tables, and the requests that commit them.

A client writes its manifest under a staged name and then asks for the version. Here all are written before anything
is timed, each as a file of its own: a server that makes them durable has as much to do as if a client had come.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance

from bench import data
from bench.load import Address
from bench.wire import call_json, of_table, post

MAX_VERSIONS = 10_000
LAST_VERSION = 2**64 - 1
"""Manifests count down from here, so that a listing begins with the latest."""


def template(folder: Path) -> Path:
    """A table of a few rows and 10,000 versions, all with manifests of one size; made once per work folder."""
    target = folder / "versions"
    if not target.exists():
        making = folder / "versions.making"
        shutil.rmtree(making, ignore_errors=True)
        dataset = lance.write_dataset(data.rows(8), str(making))
        for version in range(2, MAX_VERSIONS + 1):
            dataset.update_config({"turn": f"{version:06}"})
        making.rename(target)
    return target


@dataclass(frozen=True, slots=True)
class Staged:
    """A table with staged manifests; `entries` are the bodies that commit them, first version first."""

    name: str
    location: str
    entries: list[dict[str, Any]]

    def requests(self) -> Iterator[bytes]:
        """A CreateTableVersion for each."""
        return (post(of_table(self.name, "version/create"), entry) for entry in self.entries)


def stage(address: Address, name: str, source: Path, versions: int) -> Staged:
    """Declare a table and lay the first versions of `source` into it. Raises RuntimeError if it cannot be declared."""
    uri: str = call_json(address, of_table(name, "declare"))["location"]
    folder = Path(uri.removeprefix("file://"))
    shutil.copytree(source / "data", folder / "data", copy_function=_link)
    (folder / "_versions").mkdir(parents=True, exist_ok=True)
    entries = [{"id": name.split("$"), **_stage(source, folder, version)} for version in range(1, versions + 1)]
    return Staged(name, str(folder), entries)


def _stage(source: Path, folder: Path, version: int) -> dict[str, Any]:
    final = f"{LAST_VERSION - version:020}.manifest"
    staged = folder / "_versions" / f"{final}-{version:032x}"
    shutil.copyfile(source / "_versions" / final, staged)
    path, size = str(staged).lstrip("/"), staged.stat().st_size
    return {"version": version, "manifest_path": path, "manifest_size": size, "naming_scheme": "V2"}


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)
