"""What commands import before they have anything to do: `--help` answers at once, and a server is asked soon."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from tiltyard.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = ("lance_namespace_urllib3_client", "pyarrow", "lance", "tiltyard.server")
print(*(name for name in heavy if name in sys.modules))
"""


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["grants", "--help"],
        ["view", "create", "--help"],
        ["whoami", "--url", "http://127.0.0.1:1"],
        ["ls", "--server", "http://127.0.0.1:1"],
    ],
)
def test_command_imports_nothing_of_a_server_or_of_lance_before_it_asks(command: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.splitlines()[-1] == "", run.stdout
