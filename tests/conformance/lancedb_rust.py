"""Run the `lancedb` crate, as it is published, against a server: `rust/src/main.rs`. Needs cargo and protoc.

python -m tests.conformance.lancedb_rust

It is not part of the tests: the crate compiles Lance and DataFusion, which takes half an hour on two cores.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.services.server import ServerProcess

PROGRAM = Path(__file__).parent / "rust"


def main() -> int:
    """Print the outcome of each call; return 1 if one failed, 2 where it cannot be compiled here."""
    for tool in ("cargo", "protoc"):
        if shutil.which(tool) is None:
            sys.stderr.write(f"Not run: {tool} is missing (Rust's toolchain; protobuf-compiler).\n")
            return 2
    subprocess.run(["cargo", "build", "--quiet"], cwd=PROGRAM, check=True)
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder))
        try:
            command = ["cargo", "run", "--quiet", "--", server.url, "any-key"]
            run = subprocess.run(command, cwd=PROGRAM, check=True, stdout=subprocess.PIPE, text=True)
        finally:
            server.stop()
    outcomes = [json.loads(line) for line in run.stdout.splitlines()]
    for outcome in outcomes:
        sys.stdout.write(f"{outcome['call']}: {outcome['error'] or 'works'}\n")
    return int(any(outcome["error"] for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
