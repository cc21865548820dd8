"""Fetch the console's JavaScript libraries at their pinned versions, or check that what is in the tree is theirs.

python scripts/vendor_console.py            # fetch by `npm pack`, and write the files (needs the registry)
python scripts/vendor_console.py --check    # compare the digests of the files in the tree; no network
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "src/tiltyard/console/static/vendor"
PINNED = {
    "htmx": "htmx.org@2.0.8",
    "uplot": "uplot@1.6.32",
}
"""The package of each library."""
DIGESTS = {
    "htmx dist/htmx.min.js": "22283ef68cb7545914f0a88a1bdedc7256a703d1d580c1d255217d0a50d31313",
    "htmx LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "uplot dist/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot dist/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""The files that are served, and the SHA-256 of each."""


def main() -> None:
    """Fetch the files, or check them."""
    parser = argparse.ArgumentParser(description="Vendor the console's JavaScript libraries.")
    parser.add_argument("--check", action="store_true", help="compare what is in the tree, and fetch nothing")
    if not parser.parse_args().check:
        for name, package in PINNED.items():
            fetch(name, package)
    wrong = [name for name, digest in DIGESTS.items() if digest_of(served_file(name)) != digest]
    if wrong:
        sys.exit(f"Not what is pinned: {', '.join(wrong)}.")


def fetch(name: str, package: str) -> None:
    """Write the files of a package into the library's folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", package]
        packing = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)  # noqa: S603  # pinned
        with tarfile.open(Path(folder) / packing.stdout.split()[-1]) as packed:
            for file in (entry.split()[1] for entry in DIGESTS if entry.split()[0] == name):
                content = packed.extractfile(f"package/{file}")
                assert content is not None
                target = served_file(f"{name} {file}")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())


def served_file(name: str) -> Path:
    """Return where a file of a library is in the tree: licences are served as text."""
    library, _, file = name.partition(" ")
    base = Path(file).name
    return FOLDER / library / ("LICENSE.txt" if base == "LICENSE" else base)


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, "" without one."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""


if __name__ == "__main__":
    main()
