"""What the log of a server's process leaves out."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import logging, sys
from tiltyard.config import load_settings
from tiltyard.server.log_setup import set_up_logging

set_up_logging(load_settings({"log_level": sys.argv[1]}))
import faiss
logging.getLogger("tiltyard").info("it goes on")
"""


@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("debug", 1), ("error", 0)])
def test_loading_faiss_logs_nothing(level: str, lines: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, level], capture_output=True, text=True, timeout=60, check=True
    )
    assert "faiss" not in ran.stderr
    assert ran.stderr.count("it goes on") == lines
