"""Rest before a turn that writes much, so that all sides find the machine alike."""

from __future__ import annotations

import os
import time

REST_SECONDS = 5.0
"""Longer than free memory stays with a virtual machine: Linux gives it back to the host after two seconds."""


def rest() -> None:
    """Let the disk end its work, and the host have what memory is free.

    Else who writes next takes memory that was freed the moment before, as far as it goes, and this alone can halve
    its time.
    """
    os.sync()
    time.sleep(REST_SECONDS)
