"""Run the `lancedb` crate, as it is published, against servers: `rust/src/main.rs`.

Needs cargo, and protoc with the types that come with it (Debian: protobuf-compiler, libprotobuf-dev).

python -m tests.conformance.lancedb_rust

The servers are an open one, where any key does, and one that asks for keys. It is not part of the tests: the crate
compiles Lance and DataFusion, which takes half an hour on two cores.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.access.scenes import send
from tests.services.secured import make_keys
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.config import Settings
from tiltyard.model.spec import operations

PROGRAM = Path(__file__).parent / "rust"
PRINCIPAL, ROLE = "ann", "readers"


def main() -> int:
    """Print the outcome of each call; return 1 if one failed, 2 where it cannot be compiled here."""
    for tool in ("cargo", "protoc"):
        if shutil.which(tool) is None:
            sys.stderr.write(f"Not run: {tool} is missing (Rust's toolchain; protobuf-compiler and libprotobuf-dev).\n")
            return 2
    subprocess.run(["cargo", "build", "--quiet"], cwd=PROGRAM, check=True)
    has_failed = False
    for flags in ((), ("--auth",)):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = run_program(Path(folder), *flags)
        sys.stdout.write(f"{' '.join(flags) or 'without authentication'}: {len(outcomes)} checks\n")
        for outcome in outcomes:
            has_failed |= bool(outcome["error"])
            sys.stdout.write(f"  {outcome['call']}: {outcome['error'] or 'works'}\n")
    return int(has_failed)


def run_program(folder: Path, *flags: str) -> list[dict[str, str | None]]:
    """Return what the calls came to, on a new server, as an administrator. Raises CalledProcessError."""
    root, key_file = folder / "root", folder / "secrets.key"
    key_file.write_text(base64.b64encode(os.urandom(32)).decode())
    keys = make_keys(Settings(root=str(root)).database_url, "administrator", PRINCIPAL)
    environ = {
        "TILTYARD_SECRET_KEYS": f'["file:{key_file}"]',
        "TILTYARD_UDFS": "true",
        "TILTYARD_VECTOR_CACHE_BYTES": "0",  # a check is about the rows that a bound of Lance's partitions leaves out
    }
    server = ServerProcess(root, *flags, environ=environ)
    try:
        wire = Wire(server.url)
        wire.http.headers["x-api-key"] = keys["administrator"]
        created = send(wire.http, operations()["CreateRole"], {"role": ROLE})
        created.raise_for_status()
        command = ["cargo", "run", "--quiet", "--", server.url, keys["administrator"]]
        run = subprocess.run(command, cwd=PROGRAM, check=True, stdout=subprocess.PIPE, text=True)
    finally:
        server.stop()
    return [json.loads(line) for line in run.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
